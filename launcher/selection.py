"""Which attempts a person means: `latest`, a Slurm job's id, a run's name or folder, an attempt's folder, a sweep.

The id of an array without an index means all of its elements; a sweep means all of its points.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from launcher.errors import ConfigError, SubmissionError
from launcher.outcome import read_outcome
from launcher.paths import AttemptPaths, Outputs, RunPaths, SweepPaths
from launcher.submission import read_submission
from launcher.suggest import nearest
from launcher.sweep.record import attempts_of, read_sweep

Wanted = Callable[[AttemptPaths], bool]

_NUM_NEAR = 3
_ENDED = {"finished": "has finished without", "failed": "failed before it had"}
"""How an attempt that lacks something ended; otherwise it was cancelled or refused."""


def outputs_among(words: Sequence[str], *, flags: Sequence[str] = ()) -> tuple[Outputs, list[str]]:
    """The folder that `output_dir=` names among the words (outputs where none does), and the other words.

    Raises ConfigError for a flag that is none of the verb's.
    """
    for word in words:
        if word.startswith("-") and word not in flags:
            hints = [f"\nhint: {flag}" for flag in nearest(word, names=flags)]
            raise ConfigError(f"error: {word} is no flag of this verb{hints[0] if hints else ''}")
    named = [word.partition("=")[2] for word in words if word.startswith("output_dir=")]
    return Outputs(Path(named[-1] if named else "outputs")), [w for w in words if not w.startswith("output_dir=")]


def select_one(name: str, *, outputs: Outputs, wanted: Wanted, what: str) -> AttemptPaths:
    """The newest attempt with `what`, as `wanted` tells. Raises ConfigError with the nearest names there are."""
    found = _having(name, outputs=outputs, wanted=wanted, what=what)
    if len(found) > 1 and _is_array(name):
        raise ConfigError(f"error: job {name} is an array of {len(found)} runs, this takes one\nhint: {name}_0")
    return found[-1]


def select_several(names: Sequence[str], *, outputs: Outputs, wanted: Wanted, what: str) -> list[AttemptPaths]:
    """An attempt for each name, those of all elements for the id of an array, those of all points for a sweep; each
    once. Raises ConfigError, and SubmissionError for a sweep of which nothing was submitted."""
    found: dict[AttemptPaths, None] = {}
    for name in names:
        sweep = sweep_named(name, outputs=outputs)
        if sweep is None:
            having = _having(name, outputs=outputs, wanted=wanted, what=what)
            found |= dict.fromkeys(having if _is_array(name) else having[-1:])
        else:
            found |= dict.fromkeys(_points(sweep, wanted=wanted))
    return list(found)


def sweep_named(name: str, *, outputs: Outputs) -> SweepPaths | None:
    """The sweep whose folder or hash the name is; None where it is none's."""
    candidates = (SweepPaths(Path(name)), outputs.sweep(name))
    return next((sweep for sweep in candidates if sweep.points.exists()), None)


def newest_attempts(outputs: Outputs) -> list[AttemptPaths]:
    """The newest attempt of every run, the oldest run first."""
    return [run.attempts()[-1] for run in outputs.runs()]


def _points(sweep: SweepPaths, *, wanted: Wanted) -> list[AttemptPaths]:
    """Of each point the newest attempt that is wanted. Raises SubmissionError where nothing was ever submitted."""
    of_points = [attempts_of(point, sweep=sweep) for point in read_sweep(sweep).points]
    outcomes = [read_outcome(attempt) for attempts in of_points for attempt in attempts]
    refusals = [outcome.headline for outcome in outcomes if outcome is not None and outcome.state == "refused"]
    if len(refusals) == len(outcomes):
        why = f"\n  why:    {refusals[-1].removeprefix('error: ')}" if refusals else ""
        text = f"error: nothing of the sweep {sweep.root} was submitted{why}\nhint: type the same words again"
        raise SubmissionError(text)
    newest = ([a for a in attempts if wanted(a)][-1:] for attempts in of_points)
    return [attempt for attempts in newest for attempt in attempts]


def _having(name: str, *, outputs: Outputs, wanted: Wanted, what: str) -> list[AttemptPaths]:
    """The attempts meant that are wanted, at least one. Raises ConfigError that says which of both is missing."""
    meant = _meant(name, outputs=outputs, wanted=wanted)
    found = [attempt for attempt in meant if wanted(attempt)]
    if found:
        return found
    if meant:
        raise ConfigError(_without(meant[-1], what=what))
    runs = [run.root.name for run in outputs.runs()][::-1]
    jobs = [job for run in outputs.runs() for attempt in run.attempts() if (job := _job(attempt)) is not None]
    near = nearest(Path(name).name, names=[*runs, *jobs])[:_NUM_NEAR]
    there = f"  near:   {', '.join(near)}" if near else "  there:  no run"
    raise ConfigError(f"error: no run is called {name} in {outputs.root}, of {len(runs)} run(s)\n{there}")


def _without(attempt: AttemptPaths, *, what: str) -> str:
    """What to say of an attempt that is there and lacks something."""
    outcome = read_outcome(attempt)
    if outcome is None:
        return f"error: {attempt.root} does not have {what} yet\nhint: python -m launcher status {attempt.root}"
    reason = f"\n  why:    {outcome.headline}" if outcome.error else ""
    how = _ENDED.get(outcome.state) or f"was {outcome.state} before it had"
    return f"error: {attempt.root} {how} {what}{reason}"


def _meant(name: str, *, outputs: Outputs, wanted: Wanted) -> list[AttemptPaths]:
    if name == "latest":
        having = [run for run in outputs.runs() if any(map(wanted, run.attempts()))] or outputs.runs()
        return having[-1].attempts() if having else []
    if name.replace("_", "").isdigit():
        attempts = [attempt for run in outputs.runs() for attempt in run.attempts()]
        return [attempt for attempt in attempts if (job := _job(attempt)) and name in (job, job.partition("_")[0])]
    for folder in (Path(name), outputs.root / name):
        if (folder / "resolved.yaml").exists():
            return [AttemptPaths(folder)]
        if found := RunPaths(folder).attempts():
            return found
    return []


def _is_array(name: str) -> bool:
    """Whether a name may be the id of an array without an index."""
    return name.isdigit()


def _job(attempt: AttemptPaths) -> str | None:
    submission = read_submission(attempt)
    return submission.job if submission is not None and submission.is_slurm else None

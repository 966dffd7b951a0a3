"""Which attempts a person means: `latest`, a Slurm job's id, a run's name or folder, an attempt's folder, a sweep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from launcher.errors import ConfigError
from launcher.paths import AttemptPaths, Outputs, RunPaths, SweepPaths
from launcher.submission import read_submission
from launcher.sweep.record import attempt_of, read_sweep

Wanted = Callable[[AttemptPaths], bool]


def outputs_among(words: Sequence[str]) -> tuple[Outputs, list[str]]:
    """The folder that `output_dir=` names among the words (outputs where none does), and the other words."""
    named = [word.partition("=")[2] for word in words if word.startswith("output_dir=")]
    return Outputs(Path(named[-1] if named else "outputs")), [w for w in words if not w.startswith("output_dir=")]


def select_one(name: str, *, outputs: Outputs, wanted: Wanted, what: str) -> AttemptPaths:
    """The newest attempt with `what`, as `wanted` tells. Raises ConfigError with the names there are."""
    found = [attempt for attempt in _meant(name, outputs=outputs, wanted=wanted) if wanted(attempt)]
    if found:
        return found[-1]
    there = ", ".join(run.root.name for run in outputs.runs() if any(map(wanted, run.attempts()))) or "none"
    raise ConfigError(f"error: no run with {what} is called {name} in {outputs.root}\n  there:  {there}")


def select_several(names: Sequence[str], *, outputs: Outputs, wanted: Wanted, what: str) -> list[AttemptPaths]:
    """An attempt for each name, and those of all points for the name of a sweep; each once. Raises ConfigError."""
    found: dict[AttemptPaths, None] = {}
    for name in names:
        sweep = sweep_named(name, outputs=outputs)
        if sweep is None:
            found[select_one(name, outputs=outputs, wanted=wanted, what=what)] = None
        else:
            attempts = (attempt_of(point, sweep=sweep) for point in read_sweep(sweep).points)
            found |= dict.fromkeys(a for a in attempts if a is not None and wanted(a))
    return list(found)


def sweep_named(name: str, *, outputs: Outputs) -> SweepPaths | None:
    """The sweep whose folder or hash the name is; None where it is none's."""
    candidates = (SweepPaths(Path(name)), outputs.sweep(name))
    return next((sweep for sweep in candidates if sweep.points.exists()), None)


def newest_attempts(outputs: Outputs) -> list[AttemptPaths]:
    """The newest attempt of every run, the oldest run first."""
    return [run.attempts()[-1] for run in outputs.runs()]


def _meant(name: str, *, outputs: Outputs, wanted: Wanted) -> list[AttemptPaths]:
    if name == "latest":
        having = [run for run in outputs.runs() if any(map(wanted, run.attempts()))]
        return having[-1].attempts() if having else []
    if name.replace("_", "").isdigit():
        return [attempt for run in outputs.runs() for attempt in run.attempts() if _job(attempt) == name]
    for folder in (Path(name), outputs.root / name):
        if (folder / "resolved.yaml").exists():
            return [AttemptPaths(folder)]
        if found := RunPaths(folder).attempts():
            return found
    return []


def _job(attempt: AttemptPaths) -> str | None:
    submission = read_submission(attempt)
    return submission.job if submission is not None and submission.is_slurm else None

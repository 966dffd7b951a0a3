"""The verb requeue: runs that ended on Slurm without finishing go on from their last save, in new attempts.

The configuration is the attempt's frozen one; code and packages are those of now, and the new attempt says so. What
was in an array of a sweep goes back as one, by `launcher.sweep.again`.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from launcher.errors import ConfigError, ExitCode, LauncherError, SubmissionError
from launcher.gates import check_machine
from launcher.outcome import read_outcome
from launcher.paths import AttemptPaths, Outputs, SweepPaths
from launcher.resolved import load_resolved
from launcher.schema import RunConfig
from launcher.secrets import check_secrets
from launcher.selection import outputs_among, select_several
from launcher.slurm.refused import avoiding
from launcher.submission import read_submission
from launcher.submit import repeat_attempt, running_attempts, start_slurm, unwritable
from launcher.sweep.again import requeue_points, sweep_of
from launcher.sweep.arrays import adopt_orphans, only_submitter
from launcher.validate import validate


def requeue(words: Sequence[str]) -> ExitCode:
    """Queue each run named again, but for those that are on or have finished: a line says so of each.

    All are looked at before the first is queued. Raises LauncherError's kinds, also where none is left.
    """
    outputs, names = outputs_among(words)
    if not names:
        raise ConfigError("error: requeue needs a run\nhint: python -m launcher requeue latest")
    chosen = _one_of_each_run(select_several(names, outputs=outputs, wanted=_was_submitted, what="a job"))
    sweeps = dict.fromkeys(sweep for paths in chosen if (sweep := sweep_of(paths)) is not None)
    _adopt(chosen, outputs=outputs)
    with ExitStack() as locks:
        for sweep in sweeps:
            locks.enter_context(only_submitter(sweep))
        configs = {paths: _checked(paths) for paths in _left(chosen)}
        for sweep in sweeps:
            members = {paths: config for paths, config in configs.items() if sweep_of(paths) == sweep}
            if members:
                _requeue_together(members, sweep=sweep)
        _requeue_one_by_one({paths: config for paths, config in configs.items() if sweep_of(paths) is None})
    return ExitCode.OK


def _requeue_together(configs: Mapping[AttemptPaths, RunConfig], *, sweep: SweepPaths) -> None:
    try:
        requeue_points(configs, sweep=sweep)
    except OSError as error:
        raise unwritable(next(iter(configs.values())), error=error) from None


def _requeue_one_by_one(configs: Mapping[AttemptPaths, RunConfig]) -> None:
    for paths, config in configs.items():
        attempt = repeat_attempt(paths, config=config)
        job = start_slurm(attempt, config=avoiding(config, run=paths.run)).job_id
        print(f"submitted job {job}: {attempt.root}\nlog: {attempt.log(job, rank=0)}")


def _one_of_each_run(attempts: Sequence[AttemptPaths]) -> list[AttemptPaths]:
    """The newest: a run may be named twice, by its sweep and by an earlier job."""
    ordered = sorted(attempts, key=lambda attempt: attempt.number)
    return list({attempt.root.parent.absolute(): attempt for attempt in ordered}.values())


def _adopt(chosen: Sequence[AttemptPaths], *, outputs: Outputs) -> None:
    """A launcher that was killed may have queued a run in an array that it could not record."""
    for run in dict.fromkeys(paths.run for paths in chosen):
        if read_submission(run.attempts()[-1]) is None:
            adopt_orphans(outputs, run=run)


def _left(chosen: Sequence[AttemptPaths]) -> list[AttemptPaths]:
    """Those that may be queued again; the others are said. Raises what is wrong where none is left."""
    running = running_attempts(paths.run for paths in chosen)
    refusals = {paths: _refusal(paths, running=running) for paths in chosen}
    left = [paths for paths, refusal in refusals.items() if refusal is None]
    refused = [refusal for refusal in refusals.values() if refusal is not None]
    if not left and len(refused) == 1:
        raise refused[0]
    for refusal in refused:
        print(f"left: {str(refusal).splitlines()[0].removeprefix('error: ')}")
    if not left:
        raise ConfigError(f"error: none of the {len(chosen)} runs can be queued again\nhint: python -m launcher status")
    return left


def _refusal(paths: AttemptPaths, *, running: Mapping[str, AttemptPaths]) -> LauncherError | None:
    """Why a run is not to be queued again; None where it may be."""
    submission, run = read_submission(paths), paths.run
    assert submission is not None, "selected by having one"
    if not submission.is_slurm:
        return ConfigError(f"error: {paths.root} ran on this machine, not on Slurm\nhint: {_words(paths)}")
    if str(run.root) in running:
        root = running[str(run.root)].root
        return SubmissionError(f"error: {root} is queued or running\nhint: python -m launcher status {root}")
    for attempt in run.attempts()[::-1]:
        outcome = read_outcome(attempt)
        if attempt.number >= paths.number and outcome is not None and outcome.state == "finished":
            return ConfigError(f"error: {attempt.root} has finished\nhint: {_words(attempt, again=True)}")
    return None


def _checked(paths: AttemptPaths) -> RunConfig:
    """The configuration of an attempt that may be queued again. It is repeated from its saves, so not forced."""
    config = replace(load_resolved(paths.resolved), force=False)
    validate(config).raise_if_invalid()
    check_secrets(config, overrides=(), exported=os.environ)
    if missing := check_machine(config):
        raise SubmissionError("\n".join(["error: this machine cannot submit it", *missing]))
    return config


def _words(paths: AttemptPaths, *, again: bool = False) -> str:
    """What to type for the same run: it goes on from its last save, or begins `again`."""
    words = [word for word in paths.overrides.read_text().splitlines() if word != "force=true"]
    return shlex.join(["python", "-m", "launcher", *words, *(["force=true"] if again else [])])


def _was_submitted(paths: AttemptPaths) -> bool:
    return paths.submission.exists()

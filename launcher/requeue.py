"""The verb requeue: a run that ended on Slurm without finishing goes on from its last save, in a new attempt.

The configuration is the attempt's frozen one; code and packages are those of now, and the new attempt says so.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from launcher.errors import ConfigError, ExitCode, SubmissionError
from launcher.gates import check_machine
from launcher.outcome import read_outcome
from launcher.paths import AttemptPaths, RunPaths
from launcher.resolved import load_resolved
from launcher.schema import RunConfig
from launcher.secrets import check_secrets
from launcher.selection import outputs_among, select_several
from launcher.slurm.refused import avoiding
from launcher.submission import read_submission
from launcher.submit import repeat_attempt, running_attempt, start_slurm
from launcher.validate import validate


def requeue(words: Sequence[str]) -> ExitCode:
    """Queue each run named again. All are looked at before the first is queued; raises LauncherError's kinds."""
    outputs, names = outputs_among(words)
    if not names:
        raise ConfigError("error: requeue needs a run\nhint: python -m launcher requeue latest")
    chosen = select_several(names, outputs=outputs, wanted=_was_submitted, what="a job")
    configs = [_checked(paths) for paths in chosen]
    for paths, config in zip(chosen, configs, strict=True):
        attempt = repeat_attempt(paths, config=config)
        job = start_slurm(attempt, config=avoiding(config, run=RunPaths(paths.root.parent))).job_id
        print(f"submitted job {job}: {attempt.root}\nlog: {attempt.log(job, rank=0)}")
    return ExitCode.OK


def _checked(paths: AttemptPaths) -> RunConfig:
    """The configuration of an attempt that may be queued again. It is repeated from its saves, so not forced."""
    submission, outcome = read_submission(paths), read_outcome(paths)
    assert submission is not None, "selected by having one"
    if not submission.is_slurm:
        raise ConfigError(f"error: {paths.root} ran on this machine, not on Slurm\nhint: the words it was started with")
    if outcome is not None and outcome.state == "finished":
        raise ConfigError(f"error: {paths.root} has finished\nhint: its words with force=true repeat it")
    running = running_attempt(RunPaths(paths.root.parent))
    if running is not None:
        raise SubmissionError(f"error: {running.root} is queued or running\nhint: python -m launcher status")
    config = replace(load_resolved(paths.resolved), force=False)
    validate(config).raise_if_invalid()
    check_secrets(config, overrides=(), exported=os.environ)
    if missing := check_machine(config):
        raise SubmissionError("\n".join(["error: this machine cannot submit it", *missing]))
    return config


def _was_submitted(paths: AttemptPaths) -> bool:
    return paths.submission.exists()

"""Submitting through submitit: the plain worker on the frozen attempt, from an environment that belongs to no job.

Owns sbatch's refusals in words a person can act on.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from submitit import Job, SlurmExecutor
from submitit.core.utils import FailedJobError, FailedSubmissionError
from submitit.helpers import clean_env

from launcher.errors import SubmissionError
from launcher.paths import AttemptPaths
from launcher.schema import RunConfig
from launcher.slurm.parameters import interpreter, parameters
from launcher.worker import run_rank

_HINTS: tuple[tuple[str, str], ...] = (
    ("invalid partition", "cluster.partition=NAME, one that sinfo lists"),
    ("invalid account", "cluster.account=NAME, one that sacctmgr show associations lists"),
    ("invalid qos", "cluster.qos=NAME, one that sacctmgr show qos lists"),
    ("time limit", "cluster.timeout_min=MINUTES, at most the partition's limit (sinfo)"),
    (
        "node configuration is not available",
        "cluster.gpus_per_node, cpus_per_task or mem: no node has as much (sinfo -N)",
    ),
    ("--mem specification", "cluster.mem=200G: sbatch takes a number with K, M, G or T, and 0 for all of a node"),
    ("memory required", "cluster.mem=SIZE, at most a node's (sinfo -o %m)"),
    ("memory spec", "cluster.mem=SIZE, at most a node's (sinfo -o %m)"),
    ("invalid node name", "cluster.exclude=NODES, or nodelist in cluster.sbatch, as sinfo -N lists them"),
    ("--mail-type specification", "cluster.mail_type=END,FAIL in quotes: events that sbatch(1) names"),
    ("more processors", "cluster.nodes: the partition has not as many (sinfo)"),
    ("feature", "cluster.constraint=FEATURE, one that sinfo -o %f lists"),
    ("reservation", "cluster.reservation=NAME, one that scontrol show reservation lists"),
    ("unrecognized option", "~cluster.sbatch.OPTION: this sbatch has no such option"),
    ("contact", "is Slurm's controller up? scontrol ping"),
)
"""What sbatch may say, in part, and what to type then."""


def submit_slurm(paths: AttemptPaths, *, config: RunConfig, code: Path) -> Job[None]:
    """Hand the attempt to sbatch; returns at once. Raises SubmissionError with sbatch's own words."""
    asked = parameters(config, attempt=paths, code=code)
    return submit_all([paths], logs=paths.logs, python=interpreter(config), asked=asked)[0]


def submit_all(
    attempts: Sequence[AttemptPaths], *, logs: Path, python: str, asked: Mapping[str, Any]
) -> list[Job[None]]:
    """Hand attempts to one sbatch, several as an array; returns at once. Raises SubmissionError with sbatch's words."""
    try:
        executor = SlurmExecutor(folder=logs.absolute(), python=python)
    except RuntimeError as error:
        raise SubmissionError(
            f"error: {error}\nhint: submit from a machine with Slurm, or type cluster=local"
        ) from None
    executor.update_parameters(**asked)
    try:
        with outside_of_any_job(), contextlib.redirect_stderr(io.StringIO()):
            with executor.batch():
                return [executor.submit(run_rank, str(attempt.root.absolute())) for attempt in attempts]
    except (FailedJobError, FailedSubmissionError) as error:
        raise SubmissionError(_refusal(str(error))) from None


@contextlib.contextmanager
def outside_of_any_job() -> Generator[None]:
    """No variable of a job around us, nor one that would add an option to what the plan showed.

    SLURM_CONF says where Slurm is, so it stays.
    """
    conf = os.environ.get("SLURM_CONF")
    with clean_env():
        if conf is not None:
            os.environ["SLURM_CONF"] = conf
        yield


def _refusal(words: str) -> str:
    hints = [hint for part, hint in _HINTS if part in words.lower()]
    quoted = "".join(f"\n  sbatch: {re.sub('^sbatch: ', '', line)}" for line in words.splitlines())
    hints += ["python -m launcher plan shows the script"]
    return f"error: sbatch refused the job{quoted}\nhint: {hints[0]}"

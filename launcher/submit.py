"""From a plan to running ranks: writes the attempt's folder and hands the ranks to a submitit executor."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

from submitit import Job, LocalExecutor

from launcher.compose import Composed
from launcher.errors import SubmissionError
from launcher.files import read_json, write_json, write_text
from launcher.paths import AttemptPaths, RunPaths
from launcher.plan import Plan
from launcher.provenance import git_state, installed_versions
from launcher.resolved import dump_resolved
from launcher.worker import run_rank


def finished_attempt(run: RunPaths) -> AttemptPaths | None:
    """The newest attempt that ran to its end, whatever its verdict, with the code and the packages of now.

    A changed working tree has no name, so nothing that ran in one, or would run in one, answers for the other.
    """
    versions, git = installed_versions(), git_state()
    for attempt in reversed(run.attempts()):
        outcome = read_json(attempt.outcome)
        same = read_json(attempt.versions) == versions and read_json(attempt.git) == git and git["tree"] != "changed"
        if outcome and outcome["state"] == "finished" and same:
            return attempt
    return None


def running_attempt(run: RunPaths) -> AttemptPaths | None:
    """An attempt without an outcome whose launcher still lives on this host."""
    for attempt in run.attempts():
        submission = read_json(attempt.submission)
        here = submission and not attempt.outcome.exists() and submission["host"] == socket.gethostname()
        if here and Path(f"/proc/{submission['pid']}").exists():
            return attempt
    return None


def write_attempt(composed: Composed, *, plan: Plan) -> AttemptPaths:
    """Make the next attempt's folder with all that describes the run; SubmissionError where it can't be written."""
    try:
        paths = plan.run.new_attempt()
        write_text(paths.resolved, text=dump_resolved(composed.config))
        write_text(paths.overrides, text="".join(f"{o}\n" for o in composed.overrides))
        write_json(paths.plan, data=plan.to_json())
        write_json(paths.versions, data=installed_versions())
        write_json(paths.git, data=git_state())
    except OSError as error:
        raise SubmissionError(
            f"error: output_dir is {composed.config.output_dir}, the run's folder cannot be written there\n"
            f"  why:    {error}\n"
            f"hint: output_dir=/a/folder/with/space"
        ) from None
    return paths


def submit_local(paths: AttemptPaths, *, plan: Plan) -> Job[None]:
    """Start one process per rank on this machine; returns at once."""
    executor = LocalExecutor(folder=paths.logs)
    executor.update_parameters(
        tasks_per_node=plan.processes_per_node,
        gpus_per_node=plan.num_gpus,
        timeout_min=plan.timeout_min,
        stderr_to_stdout=True,
    )
    payload: Callable[[str], None] = run_rank
    try:
        job = executor.submit(payload, str(paths.root.resolve()))
        write_json(paths.submission, data={"host": socket.gethostname(), "pid": os.getpid(), "job": job.job_id})
    except OSError as error:
        raise SubmissionError(f"error: the ranks could not be started: {error}") from None
    return job


def log_of_rank(job: Job[None], *, rank: int) -> Path:
    """The file with everything the rank printed."""
    return job.task(rank).paths.stdout

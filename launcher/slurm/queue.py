"""What Slurm says of jobs, and cancelling them. One squeue and at most one sacct for any number of jobs."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from launcher.errors import SubmissionError

_TIMEOUT_S = 30
UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, kw_only=True)
class JobState:
    """`state` in Slurm's capitals, UNKNOWN where neither squeue nor sacct knows the job; `detail` is why it waits, or
    its nodes, or its exit code."""

    job: str
    state: str
    detail: str = ""
    is_active: bool = False
    """Slurm still has it in its queue: pending, running, completing."""


def job_states(jobs: Iterable[str]) -> dict[str, JobState]:
    """The state of each job. Raises SubmissionError where Slurm does not answer."""
    wanted = list(dict.fromkeys(jobs))
    if not wanted:
        return {}
    queued = _queued()
    over = _accounted([job for job in wanted if job not in queued])
    return {job: queued.get(job) or over.get(job) or JobState(job=job, state=UNKNOWN) for job in wanted}


def _queued() -> dict[str, JobState]:
    """Every job of this user in the queue; each element of an array by itself, as 12_3."""
    found: dict[str, JobState] = {}
    for line in _run("squeue", "--noheader", "--me", "--array", "--format=%i|%T|%R").splitlines():
        job, state, detail = line.split("|", 2)
        found[job] = JobState(job=job, state=state, detail=detail.strip("()"), is_active=True)
    return found


def _accounted(jobs: Sequence[str]) -> dict[str, JobState]:
    """Jobs that have left the queue; none where the cluster keeps no accounts."""
    if not jobs:
        return {}
    words = ("--noheader", "--allocations", "--parsable2", "--format=JobID,State,ExitCode", f"--jobs={','.join(jobs)}")
    found: dict[str, JobState] = {}
    for line in _sacct(*words).splitlines():
        job, state, code = line.split("|")
        # "CANCELLED by 1000" names who did it
        found[job] = JobState(job=job, state=state.split()[0], detail=f"exit {code}")
    return found


def _sacct(*words: str) -> str:
    """What sacct prints; nothing where the cluster keeps no accounts."""
    try:
        return _run("sacct", *words)
    except SubmissionError as error:
        if "accounting storage is disabled" in str(error):
            return ""
        raise


def job_named(name: str) -> str | None:
    """The id of this user's job, or array of jobs, with this name: in the queue, or over within the last month."""
    found = _run("squeue", "--noheader", "--me", "--format=%F", f"--name={name}").split()
    if not found:
        words = ("--noheader", "--allocations", "--parsable2", "--format=JobID", "--starttime=now-30days")
        found = _sacct(*words, f"--name={name}").split()
    return found[0].partition("_")[0] if found else None


def max_array_size() -> int:
    """How many elements an array may have here: `MaxArraySize` of slurm.conf."""
    match = re.search(r"^MaxArraySize\s*=\s*(\d+)", _run("scontrol", "show", "config"), re.MULTILINE)
    assert match, "scontrol show config names MaxArraySize in every version of Slurm"
    return int(match.group(1))


def cancel_jobs(jobs: Sequence[str]) -> None:
    """End the jobs. Raises SubmissionError with scancel's own words."""
    _run("scancel", *jobs)


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    except FileNotFoundError:
        raise SubmissionError(f"error: there is no {command[0]} here\nhint: ask on a machine of the cluster") from None
    except subprocess.TimeoutExpired:
        raise SubmissionError(f"error: {command[0]} did not answer within {_TIMEOUT_S} s") from None
    except subprocess.CalledProcessError as error:
        raise SubmissionError(f"error: {command[0]} failed: {error.stderr.strip()}") from None
    return done.stdout

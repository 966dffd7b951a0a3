"""What Slurm says of jobs, and cancelling them. One squeue and at most one sacct for thousands of jobs."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import batched

from launcher.errors import SubmissionError

_TIMEOUT_S = 30
_PATIENCE_S = 3600.0
_IDS_AT_ONCE = 5000
"""Ids on one command line: Linux takes 128 KiB in a word, and ids of Slurm have up to ten digits."""

_UNREACHABLE = ("Unable to contact slurm controller", "configuration source", "failed to fetch config")
"""In what a program of Slurm says where its controller is down, or slurm.conf is not to be had (22.05)."""

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


class PatientQueue:
    """Asks for states on behalf of one who waits: jobs go on while Slurm's controller is restarted."""

    def __init__(self) -> None:
        self._answered = time.monotonic()

    def states(self, jobs: Iterable[str]) -> dict[str, JobState]:
        """None of the jobs where Slurm does not answer. Raises SubmissionError after an hour without an answer."""
        try:
            found = job_states(jobs)
        except SubmissionError:
            if time.monotonic() - self._answered > _PATIENCE_S:
                raise
            return {}
        self._answered = time.monotonic()
        return found


def _queued() -> dict[str, JobState]:
    """Every job of this user in the queue; each element of an array by itself, as 12_3."""
    found: dict[str, JobState] = {}
    for line in answer_of("squeue", "--noheader", "--me", "--array", "--format=%i|%T|%R").splitlines():
        job, state, detail = line.split("|", 2)
        found[job] = JobState(job=job, state=state, detail=detail.strip("()"), is_active=True)
    return found


def _accounted(jobs: Sequence[str]) -> dict[str, JobState]:
    """Jobs that have left the queue; none where the cluster keeps no accounts."""
    words = ("--noheader", "--allocations", "--parsable2", "--format=JobID,State,ExitCode,NodeList")
    found: dict[str, JobState] = {}
    for ids in _arrays(jobs):
        for line in _sacct(*words, f"--jobs={','.join(ids)}").splitlines():
            job, state, code, nodes = line.split("|")
            detail = f"exit {code}{_who_cancelled(state, nodes=nodes)}"
            found[job] = JobState(job=job, state=state.split()[0], detail=detail)
    return found


def _who_cancelled(state: str, *, nodes: str) -> str:
    """A person's id is in the state, as in "CANCELLED by 1000". With none it was Slurm; of a job that had no node yet
    that is what `kill_on_invalid_dep` asks for, and sacct does not keep the reason."""
    if state == "CANCELLED" and nodes == "None assigned":
        return ", by Slurm before it started: a job that it depends on has failed"
    _, _, by = state.partition(" by ")
    return f", by user {by}" if by else ""


def _arrays(jobs: Iterable[str]) -> Iterator[Sequence[str]]:
    """The ids for one command line after another; an array's id stands for all of its elements."""
    return batched(dict.fromkeys(job.partition("_")[0] for job in jobs), _IDS_AT_ONCE)


def _sacct(*words: str) -> str:
    """What sacct prints; nothing where the cluster keeps no accounts."""
    try:
        return answer_of("sacct", *words)
    except SubmissionError as error:
        if "accounting storage is disabled" in str(error):
            return ""
        raise


def job_named(name: str) -> str | None:
    """The id of this user's job, or array of jobs, with this name: in the queue, or over within the last month."""
    found = answer_of("squeue", "--noheader", "--me", "--format=%F", f"--name={name}").split()
    if not found:
        words = ("--noheader", "--allocations", "--parsable2", "--format=JobID", "--starttime=now-30days")
        found = _sacct(*words, f"--name={name}").split()
    return found[0].partition("_")[0] if found else None


def max_array_size() -> int:
    """How many elements an array may have here: `MaxArraySize` of slurm.conf."""
    match = re.search(r"^MaxArraySize\s*=\s*(\d+)", answer_of("scontrol", "show", "config"), re.MULTILINE)
    assert match, "scontrol show config names MaxArraySize in every version of Slurm"
    return int(match.group(1))


def cancel_jobs(jobs: Sequence[str]) -> None:
    """End the jobs. Raises SubmissionError with scancel's own words."""
    for ids in batched(jobs, _IDS_AT_ONCE):
        answer_of("scancel", *ids)


class UnreachableError(SubmissionError):
    """The program is there, and Slurm's controller did not answer it."""


def answer_of(*command: str) -> str:
    """What the program of Slurm prints. Raises SubmissionError with its own words, or where it is not installed.

    Without a readable slurm.conf, or with its controller down, a program of Slurm tries for a minute before it fails.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    except FileNotFoundError:
        raise SubmissionError(f"error: there is no {command[0]} here\nhint: ask on a machine of the cluster") from None
    except subprocess.TimeoutExpired as error:
        # What a program wrote before its time was over comes as bytes, even with text=True.
        words = (error.stderr or b"").decode().strip()
        text = f"error: {command[0]} did not answer within {_TIMEOUT_S} s{f': {words}' if words else ''}"
        raise UnreachableError(text) from None
    except subprocess.CalledProcessError as error:
        words = error.stderr.strip()
        unreachable = any(part in words for part in _UNREACHABLE)
        kind = UnreachableError if unreachable else SubmissionError
        raise kind(f"error: {command[0]} failed: {words}") from None
    return done.stdout

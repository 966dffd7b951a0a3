"""Stays with a run until its end and shows its progress; ends a local run when a rank fails.

Raises what went wrong: which rank failed first and why, or what Slurm did to the job.
"""

from __future__ import annotations

import os
import signal
import socket
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from submitit import Job

from launcher.errors import ExitCode, ExperimentError
from launcher.outcome import read_outcome, write_outcome
from launcher.paths import AttemptPaths
from launcher.records import ProgressReader, RankState, read_ranks
from launcher.slurm.queue import PatientQueue, job_states
from launcher.triage import Failure, first_failure, triage

_POLL_S = 0.2
_GRACE_S = 2.0
_ASK_SLURM_S = 5.0
_GRACE_SLURM_S = 10.0


def watch_local(job: Job[None], *, paths: AttemptPaths, num_ranks: int, console: Console) -> None:
    """Wait for every rank. Raises ExperimentError with the first failure; no rank is left running, also on Ctrl-C."""
    try:
        failure = _follow(job, paths=paths, num_ranks=num_ranks, console=console)
    except BaseException:
        _end(job, paths=paths)
        write_outcome(paths, state="cancelled", exit_code=ExitCode.EXPERIMENT)
        raise
    if failure is None:
        write_outcome(paths, state="finished", exit_code=ExitCode.OK)
        return
    _end(job, paths=paths)
    text = triage(failure, log=paths.log(job.job_id, rank=failure.rank), root=paths.root)
    write_outcome(paths, state="failed", exit_code=failure.exit_code, error=text)
    raise _failed(text, exit_code=failure.exit_code)


def _failed(text: str, *, exit_code: int) -> ExperimentError:
    error = ExperimentError(text)
    error.exit_code = ExitCode(exit_code)
    return error


def watch_slurm(job: str, *, paths: AttemptPaths, console: Console) -> None:
    """Wait for the job's end. Raises ExperimentError where it failed or Slurm ended it. Ctrl-C leaves it running."""
    try:
        with _Bars(paths, console=console, first=f"job {job}") as bars:
            _wait_for_slurm(job, paths=paths, bars=bars)
    except KeyboardInterrupt:
        raise ExperimentError(f"left: job {job} goes on\nhint: python -m launcher cancel {job}") from None
    outcome = read_outcome(paths)
    if outcome is None:
        state = job_states([job])[job]
        text = f"error: Slurm ended job {job}: {state.state} ({state.detail})\nrun: {paths.root}"
        write_outcome(paths, state="failed", exit_code=ExitCode.EXPERIMENT, error=text)
        raise ExperimentError(text)
    if outcome.state != "finished":
        raise _failed(outcome.error or f"error: the run was {outcome.state}", exit_code=outcome.exit_code)


def _wait_for_slurm(job: str, *, paths: AttemptPaths, bars: _Bars) -> None:
    """Until the job has left the queue and has an outcome, or had time to write one over a shared file system."""
    over_since: float | None = None
    asked, queue = 0.0, PatientQueue()
    while not paths.outcome.exists():
        bars.update()
        now = time.monotonic()
        if over_since is not None and now - over_since > _GRACE_SLURM_S:
            return
        if now - asked > _ASK_SLURM_S:
            asked = now
            state = queue.states([job]).get(job)
            over_since = None if state is None or state.is_active else over_since or now
        time.sleep(_POLL_S)
    bars.update()


def _follow(job: Job[None], *, paths: AttemptPaths, num_ranks: int, console: Console) -> Failure | None:
    """Show progress until all ranks have finished (None) or one has failed."""
    with _Bars(paths, console=console, first="start ranks, import megatron") as bars:
        while True:
            over = job.done()
            bars.update()
            records = read_ranks(paths)
            if any(r.state is RankState.FAILED or r.is_gone for r in records) or over:
                if not over:
                    time.sleep(_GRACE_S)
                return first_failure(paths, num_ranks=num_ranks)
            time.sleep(_POLL_S)


class _Bars:
    """The stages of rank 0 as bars; `first` is shown until the first one begins."""

    def __init__(self, paths: AttemptPaths, *, console: Console, first: str) -> None:
        columns = (TextColumn("{task.description:<34}"), BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn())
        self._bars = Bars(*columns, console=console)
        self._reader = ProgressReader(paths.progress)
        self._first: TaskID | None = self._bars.add_task(first, total=None)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> _Bars:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def update(self) -> None:
        """Show what was written since the last call."""
        for event in self._reader.new_events():
            if self._first is not None:
                self._bars.update(self._first, total=1, completed=1)
                self._first = None
            if event.stage not in self._tasks:
                self._tasks[event.stage] = self._bars.add_task(event.stage, total=event.total)
            self._bars.update(self._tasks[event.stage], completed=event.done, total=event.total)


def _end(job: Job[None], *, paths: AttemptPaths) -> None:
    """End every rank and wait until submitit's controller is gone: ask, then kill, then take the controller too."""
    for sign in (signal.SIGINT, signal.SIGKILL):
        for record in read_ranks(paths):
            if record.is_alive and record.host == socket.gethostname():
                os.kill(record.pid, sign)
        if _wait_until_over(job):
            return
    while not job.done():  # ranks that had not come as far as a record
        job.cancel()
        _wait_until_over(job)


def _wait_until_over(job: Job[None]) -> bool:
    deadline = time.monotonic() + _GRACE_S
    while not job.done() and time.monotonic() < deadline:
        time.sleep(0.05)
    return job.done()

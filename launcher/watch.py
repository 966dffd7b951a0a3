"""Stays with a run until its end and shows its progress; ends a local run when a rank fails or a signal asks for it.

Raises what went wrong: which rank failed first and why, or what Slurm did to the job.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from submitit import Job

from launcher.errors import ExitCode, ExperimentError, Interrupted
from launcher.interruption import VACATE, Request, requests_noted
from launcher.local import end_processes
from launcher.outcome import read_outcome, write_outcome
from launcher.paths import AttemptPaths
from launcher.records import ProgressReader, RankState, read_ranks
from launcher.slurm.queue import PatientQueue, job_states
from launcher.triage import Failure, first_failure, triage

_POLL_S = 0.2
_GRACE_S = 2.0
_GRACE_SAVE_S = 60.0
"""For ranks that were asked to end: the rest of a step, and its save."""

_ASK_SLURM_S = 5.0
_GRACE_SLURM_S = 10.0


def watch_local(job: Job[None], *, paths: AttemptPaths, num_ranks: int, console: Console) -> None:
    """Wait for every rank. Raises ExperimentError with the first failure; no rank is left running, also on Ctrl-C.

    SIGTERM and SIGHUP are passed on. Raises Interrupted where the ranks then ended after a step, and KeyboardInterrupt,
    as Ctrl-C does, where they could not.
    """
    with requests_noted(_passed_on()) as request:
        try:
            failure = _follow(job, paths=paths, num_ranks=num_ranks, request=request, console=console)
        except BaseException:
            end_processes(paths)
            write_outcome(paths, state="cancelled", exit_code=ExitCode.EXPERIMENT)
            raise
        if failure is None:
            write_outcome(paths, state="finished", exit_code=ExitCode.OK)
            return
        end_processes(paths)
        text = triage(failure, log=paths.log(job.job_id, rank=failure.rank), root=paths.root)
        if failure.exit_code == ExitCode.INTERRUPTED:
            write_outcome(paths, state="cancelled", exit_code=failure.exit_code, error=failure.text)
            raise Interrupted(text)
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


def _follow(
    job: Job[None], *, paths: AttemptPaths, num_ranks: int, request: Request, console: Console
) -> Failure | None:
    """Show progress until all ranks have finished (None) or one has failed, or all were interrupted after a step.

    Raises KeyboardInterrupt where the end was requested and the ranks ended otherwise, or not in time.
    """
    asked: float | None = None
    with _Bars(paths, console=console, first="start ranks, import megatron") as bars:
        while not (over := job.done()) and not _any_failed(paths):
            bars.update()
            if request.number and asked is None:
                asked = time.monotonic()
                with suppress(ProcessLookupError):
                    os.kill(int(job.job_id), VACATE)  # submitit's controller, which passes it on to its ranks
            if asked is not None and time.monotonic() - asked > _GRACE_SAVE_S:
                raise KeyboardInterrupt
            time.sleep(_POLL_S)
        bars.update()
        if not over:
            time.sleep(_GRACE_S)
        failure = first_failure(paths, num_ranks=num_ranks)
        if failure is not None and failure.exit_code != ExitCode.INTERRUPTED and request.number:
            raise KeyboardInterrupt
        return failure


def _passed_on() -> list[signal.Signals]:
    """SIGTERM, and SIGHUP of a terminal that is closed; under nohup a launcher goes on to ignore that one."""
    return [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]


def _any_failed(paths: AttemptPaths) -> bool:
    return any(record.state is RankState.FAILED or record.is_gone for record in read_ranks(paths))


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

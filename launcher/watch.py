"""Stays with a local run: shows its progress, ends it when a rank fails, and says which rank failed first and why."""

from __future__ import annotations

import os
import signal
import socket
import time
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from submitit import Job

from launcher.errors import ExitCode, ExperimentError
from launcher.files import disk_note, write_json
from launcher.paths import AttemptPaths
from launcher.records import ProgressReader, RankRecord, RankState, read_ranks
from launcher.submit import log_of_rank

_POLL_S = 0.2
_GRACE_S = 2.0
_LOG_LINES = 12


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The rank that failed first."""

    rank: int
    text: str
    exit_code: int


def watch_local(job: Job[None], *, paths: AttemptPaths, num_ranks: int, console: Console) -> None:
    """Wait for every rank. Raises ExperimentError with the first failure; no rank is left running, also on Ctrl-C."""
    try:
        failure = _follow(job, paths=paths, num_ranks=num_ranks, console=console)
    except BaseException:
        _end(job, paths=paths)
        _write_outcome(paths, state="cancelled", exit_code=ExitCode.EXPERIMENT)
        raise
    if failure is None:
        _write_outcome(paths, state="finished", exit_code=ExitCode.OK)
        return
    _end(job, paths=paths)
    _write_outcome(paths, state="failed", exit_code=failure.exit_code)
    error = ExperimentError(_triage(failure, job=job, paths=paths))
    error.exit_code = ExitCode(failure.exit_code)
    raise error


def _follow(job: Job[None], *, paths: AttemptPaths, num_ranks: int, console: Console) -> Failure | None:
    """Show progress until all ranks have finished (None) or one has failed."""
    reader = ProgressReader(paths.progress)
    columns = (TextColumn("{task.description:<34}"), BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn())
    with Bars(*columns, console=console) as bars:
        tasks = {"ranks": bars.add_task("start ranks, import megatron", total=None)}
        while True:
            over = job.done()
            for event in reader.new_events():
                if "ranks" in tasks:
                    bars.update(tasks.pop("ranks"), total=1, completed=1)
                if event.stage not in tasks:
                    tasks[event.stage] = bars.add_task(event.stage, total=event.total)
                bars.update(tasks[event.stage], completed=event.done, total=event.total)
            records = read_ranks(paths)
            if any(r.state is RankState.FAILED or r.is_gone for r in records) or over:
                return _first_failure(paths, num_ranks=num_ranks, wait=not over)
            time.sleep(_POLL_S)


def _first_failure(paths: AttemptPaths, *, num_ranks: int, wait: bool) -> Failure | None:
    """The cause among the ranks: one that was killed comes before those that noticed and failed in turn."""
    if wait:
        time.sleep(_GRACE_S)
    records = read_ranks(paths)
    gone = [r for r in records if r.is_gone]
    failed = sorted((r for r in records if r.state is RankState.FAILED), key=lambda r: r.time)
    if gone:
        return _killed(gone[0], paths=paths)
    if failed:
        return Failure(rank=failed[0].rank, text=failed[0].error, exit_code=failed[0].exit_code)
    missing = set(range(num_ranks)) - {r.rank for r in records}
    if missing:
        text = "error: the rank ended before it left a record" + disk_note(paths.root)
        return Failure(rank=min(missing), text=text, exit_code=ExitCode.EXPERIMENT)
    return None


def _killed(record: RankRecord, *, paths: AttemptPaths) -> Failure:
    text = (
        f"error: rank {record.rank} (process {record.pid}) was killed: it ended without an error of its own\n"
        "  why:    a signal from outside, the kernel's out-of-memory killer (see dmesg), or a crash in native code"
    )
    return Failure(rank=record.rank, text=text + disk_note(paths.root), exit_code=ExitCode.EXPERIMENT)


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


def _write_outcome(paths: AttemptPaths, *, state: str, exit_code: int) -> None:
    try:
        write_json(paths.outcome, data={"state": state, "exit_code": int(exit_code), "time": time.time()})
    except OSError as error:
        raise ExperimentError(f"error: the outcome cannot be written: {error}{disk_note(paths.root)}") from None


def _triage(failure: Failure, *, job: Job[None], paths: AttemptPaths) -> str:
    """One screen: the first failing rank, its error, its log's last lines."""
    log = log_of_rank(job, rank=failure.rank)
    lines = log.read_text(errors="replace").splitlines()[-_LOG_LINES:] if log.exists() else []
    tail = "".join(f"\n  | {line[:160]}" for line in lines)
    return f"rank {failure.rank} failed first\n{failure.text}\nlog: {log}{tail}\nrun: {paths.root}"

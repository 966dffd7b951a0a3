"""How runs are doing: state, last step, heartbeat. One question to Slurm for all of them.

Owns the rows, their table of 80 columns and their JSON.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from launcher.files import disk_note
from launcher.local import goes_on, processes_here
from launcher.outcome import read_outcome
from launcher.paths import AttemptPaths
from launcher.records import Progress, read_rank
from launcher.slurm.lives import RESTARTED, read_lives
from launcher.slurm.queue import JobState, job_states
from launcher.submission import Submission, read_submission

_SILENT_S = 600.0
_TAIL_BYTES = 4096
_RUNNING = ("RUNNING", "running")
_WIDTHS = (30, 10, 13, 19, 4)


@dataclass(frozen=True, kw_only=True)
class Row:
    """An attempt. `heartbeat_s` is the age of rank 0's last sign, null before its start and after the end."""

    run: str
    attempt: int
    job: str
    state: str
    """Slurm's words in capitals while the job is Slurm's; ours otherwise: running, finished, failed, ..."""

    detail: str
    exit_code: int | None
    step: str
    heartbeat_s: float | None
    folder: str
    lives: int = 1
    """How often the job has been started; more than once where it was requeued."""

    restarted: str = ""
    """Why, and at which step."""

    @property
    def is_silent(self) -> bool:
        """Running, and no sign for ten minutes."""
        return self.state in _RUNNING and self.heartbeat_s is not None and self.heartbeat_s > _SILENT_S


def rows_of(attempts: Sequence[AttemptPaths]) -> list[Row]:
    """A row for each attempt. Raises SubmissionError where a job's state is needed and Slurm does not answer."""
    submissions = {attempt.root: read_submission(attempt) for attempt in attempts}
    open_ones = [a for a in attempts if not a.outcome.exists()]
    found = [s for a in open_ones if (s := submissions[a.root]) is not None]
    states, processes = job_states(s.job for s in found if s.is_slurm), processes_here()
    return [
        _row(attempt, submission=submissions[attempt.root], states=states, processes=processes) for attempt in attempts
    ]


def _row(
    attempt: AttemptPaths,
    *,
    submission: Submission | None,
    states: dict[str, JobState],
    processes: dict[Path, list[int]],
) -> Row:
    outcome, last, over = read_outcome(attempt), last_event(attempt), read_lives(attempt)
    if outcome is not None:
        state, detail = outcome.state, outcome.headline
    else:
        state, detail = _live_state(attempt, submission=submission, states=states, processes=processes)
    return Row(
        run=attempt.root.parent.name,
        attempt=attempt.number,
        job=submission.job if submission is not None else "",
        state=state,
        detail=detail,
        exit_code=None if outcome is None else outcome.exit_code,
        step="" if last is None else f"{last.stage} {last.done}/{last.total}",
        heartbeat_s=_heartbeat(attempt, last=last) if state in _RUNNING else None,
        folder=str(attempt.root),
        lives=max(len(over) + (outcome is None), 1),
        restarted=", ".join(f"{life.cause} at step {life.saved_step}" for life in over if life.cause in RESTARTED),
    )


def _heartbeat(attempt: AttemptPaths, *, last: Progress | None) -> float | None:
    """Since rank 0's last event or its start, whichever came later: a rank may hang in an import or a rendezvous, and
    the events of a requeued run are of its former life."""
    signs = [sign.time for sign in (last, read_rank(attempt, rank=0)) if sign is not None]
    return max(time.time() - max(signs), 0.0) if signs else None


def _live_state(
    attempt: AttemptPaths,
    *,
    submission: Submission | None,
    states: dict[str, JobState],
    processes: dict[Path, list[int]],
) -> tuple[str, str]:
    if submission is None:
        return "not started", "the launcher was killed before, or refused"
    if not submission.is_slurm:
        return _local_state(attempt, submission=submission, processes=processes)
    job = states[submission.job]
    full = not job.is_active and disk_note(attempt.root)
    return job.state, f"{job.detail}; no outcome could be written, its disk is full" if full else job.detail


def _local_state(attempt: AttemptPaths, *, submission: Submission, processes: dict[Path, list[int]]) -> tuple[str, str]:
    if submission.launcher_lives:
        return "running", ""
    if goes_on(attempt, submission=submission, processes=processes):
        return (
            "running",
            f"its launcher was killed, its ranks go on; to end them: python -m launcher cancel {attempt.root}",
        )
    return "gone", "its launcher was killed"


def last_event(attempt: AttemptPaths) -> Progress | None:
    """Rank 0's last whole line of progress; reads the end of the file only."""
    try:
        with attempt.progress.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - _TAIL_BYTES, 0))
            lines = file.read().split(b"\n")[:-1]
    except FileNotFoundError:
        return None
    return Progress(**json.loads(lines[-1])) if lines else None


def render_rows(rows: Sequence[Row]) -> str:
    """A table of 80 columns, newest last, and a line below for what needs words."""
    cells = [("RUN", "JOB", "STATE", "LAST STEP", "AGE"), *(_cells(row) for row in rows)]
    lines = [" ".join(_fit(cell, width=w) for cell, w in zip(line, _WIDTHS, strict=True)).rstrip() for line in cells]
    notes = [note for row in rows if (note := _note(row))]
    return "\n".join([*lines, *([""] if notes else []), *notes])


def _cells(row: Row) -> tuple[str, ...]:
    state = row.state if not row.exit_code else f"{row.state} ({row.exit_code})"
    return f"{row.run}/{row.attempt}", row.job, state, row.step, _age(row.heartbeat_s)


def _note(row: Row) -> str:
    name = f"{row.run}/{row.attempt}"
    parts = [f"life {row.lives}, after {row.restarted}"] if row.restarted else []
    if row.is_silent:
        parts.append(f"{row.state} but no step for {_age(row.heartbeat_s)}")
    elif row.detail and row.state != "RUNNING":
        parts.append(row.detail)
    return f"{name}: {'; '.join(parts)}" if parts else ""


def _age(seconds: float | None) -> str:
    if seconds is None:
        return ""
    units = ((86400.0, "d"), (3600.0, "h"), (60.0, "m"))
    return next((f"{seconds / size:.0f}{unit}" for size, unit in units if seconds >= size), f"{seconds:.0f}s")


def _fit(text: str, *, width: int) -> str:
    """The text in `width` columns; the middle of a long one is left out, since names differ at their ends."""
    if len(text) <= width:
        return text.ljust(width)
    tail = width // 2
    return f"{text[: width - tail - 1]}…{text[-tail:]}"


def to_json(rows: Sequence[Row]) -> str:
    """The rows as a JSON list."""
    return json.dumps([asdict(row) for row in rows], indent=2)

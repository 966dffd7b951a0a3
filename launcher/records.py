"""What a rank leaves behind for the one who watches: its process, its state, its error, and the progress of rank 0."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from launcher.files import read_json, write_json
from launcher.paths import AttemptPaths


class RankState(StrEnum):
    """A rank that was killed stays `running` in its record while its process is gone."""

    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, kw_only=True)
class RankRecord:
    """Times are seconds since the epoch."""

    rank: int
    pid: int
    host: str
    state: RankState
    time: float
    exit_code: int = 0
    error: str = ""

    @property
    def is_alive(self) -> bool:
        """True where this host has the process; a process of another host is taken to be alive."""
        if self.host != socket.gethostname():
            return True
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except FileNotFoundError:
            return False
        return stat.rpartition(")")[2].split()[0] != "Z"

    @property
    def is_gone(self) -> bool:
        """True where the record says running and the process is not there any more: it was killed or crashed."""
        return self.state is RankState.RUNNING and not self.is_alive


def write_rank(paths: AttemptPaths, *, rank: int, state: RankState, exit_code: int = 0, error: str = "") -> None:
    """Write this process's record."""
    record = RankRecord(
        rank=rank,
        pid=os.getpid(),
        host=socket.gethostname(),
        state=state,
        time=time.time(),
        exit_code=exit_code,
        error=error,
    )
    write_json(paths.rank(rank), data=asdict(record))


def read_ranks(paths: AttemptPaths) -> list[RankRecord]:
    """The records there are, by rank."""
    found = [_read(path) for path in paths.rank(0).parent.glob("rank_*.json")]
    return sorted((record for record in found if record is not None), key=lambda record: record.rank)


def read_rank(paths: AttemptPaths, *, rank: int) -> RankRecord | None:
    """The record of a rank; None before its start."""
    return _read(paths.rank(rank))


def _read(path: Path) -> RankRecord | None:
    data: dict[str, Any] | None = read_json(path)
    return None if data is None else replace(RankRecord(**data), state=RankState(data["state"]))


@dataclass(frozen=True, kw_only=True)
class Progress:
    """One event: `done` of `total` units of a stage; a stage begins with done = 0 and ends with done = total."""

    stage: str
    done: int
    total: int
    unit: str
    time: float


class ProgressWriter:
    """Rank 0's progress; on the other ranks it writes nothing."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def __call__(self, stage: str, *, done: int, total: int, unit: str = "") -> None:
        """Append one event."""
        if self._path is None:
            return
        event = Progress(stage=stage, done=done, total=total, unit=unit, time=time.time())
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(event)) + "\n")


def first_event(path: Path) -> Progress | None:
    """The first event of a file of progress; None before there is one."""
    return next(ProgressReader(path).new_events(), None)


class ProgressReader:
    """Reads what was appended since the last call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new_events(self) -> Iterator[Progress]:
        """Whole lines only: a line half-written is left for the next call."""
        if not self._path.exists():
            return
        with self._path.open() as file:
            file.seek(self._offset)
            while (line := file.readline()).endswith("\n"):
                self._offset = file.tell()
                yield Progress(**json.loads(line))

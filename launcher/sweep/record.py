"""What a sweep leaves on the disk: its points, what became of each, and where its attempt is. Reads and writes it.

Owns the file `points.json`. How points ended is read from their attempts, by `launcher.sweep.results`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from launcher.files import read_json, write_json
from launcher.outcome import read_outcome
from launcher.paths import AttemptPaths, SweepPaths


@dataclass(frozen=True, kw_only=True)
class PointRecord:
    """One point as of the last submission."""

    number: int
    """Counted from 1."""

    words: tuple[str, ...]
    """What it has of its own; the words of all are the sweep's `fixed`."""

    state: str
    """submitted, refused (by sbatch), or what the launcher made of it: pruned, duplicate, finished, running."""

    reasons: tuple[str, ...] = ()
    """Of a pruned one: each rule's text."""

    twin: int | None = None
    """Of a duplicate: the first point that asks the same."""

    attempt: str | None = None
    """Its folder below `output_dir`, so that outputs can be moved. A requeued run has newer ones beside it."""

    num_ranks: int = 0
    num_gpus: int = 0
    """What it holds: 0 where it has no attempt; no GPU on the CPU platform."""

    @property
    def name(self) -> str:
        """Its own words on one line."""
        return " ".join(self.words) or "(the only point)"


@dataclass(frozen=True, kw_only=True)
class SweepRecord:
    """All points of a sweep, in their order."""

    fixed: tuple[str, ...]
    num_excluded: int
    points: tuple[PointRecord, ...]


def write_sweep(paths: SweepPaths, *, record: SweepRecord) -> None:
    """Write the record, whole or not at all. Raises OSError."""
    write_json(paths.points, data=asdict(record))


def read_sweep(paths: SweepPaths) -> SweepRecord:
    """The record of a sweep that has one."""
    data: dict[str, Any] = read_json(paths.points)
    return SweepRecord(
        fixed=tuple(data["fixed"]),
        num_excluded=data["num_excluded"],
        points=tuple(_point(point) for point in data["points"]),
    )


def _point(data: dict[str, Any]) -> PointRecord:
    typed: dict[str, Any] = {"words": tuple(data["words"]), "reasons": tuple(data["reasons"])}
    return PointRecord(**{**data, **typed})


def attempts_of(point: PointRecord, *, sweep: SweepPaths) -> list[AttemptPaths]:
    """The attempts at a point, oldest first: the recorded one, and what came after it unless it had finished."""
    if point.attempt is None:
        return []
    recorded = AttemptPaths(sweep.outputs.root / point.attempt)
    outcome = read_outcome(recorded)
    if outcome is not None and outcome.state == "finished":
        return [recorded]
    later = [a for a in recorded.run.attempts() if a.number > recorded.number]
    return [recorded, *later]


def attempt_of(point: PointRecord, *, sweep: SweepPaths) -> AttemptPaths | None:
    """The newest attempt at a point; None where there is none."""
    return next(reversed(attempts_of(point, sweep=sweep)), None)

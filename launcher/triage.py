"""Which rank failed first and why, from the ranks' records, srun's words and the end of a log. Reads only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.errors import ExitCode
from launcher.files import disk_note
from launcher.paths import AttemptPaths
from launcher.records import RankRecord, RankState, read_ranks

_LOG_LINES = 12
_SRUN = re.compile(r"^srun: error: (?P<node>\S+): tasks? (?P<rank>\d+)[\d,-]*: (?P<words>.+)$", re.MULTILINE)
_KILLED = "error: rank {rank} ({where}) was killed: it ended without an error of its own\n  why:    {why}"
_USUAL = "a signal from outside, the kernel's out-of-memory killer (see dmesg), or a crash in native code"


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The rank that failed first."""

    rank: int
    text: str
    exit_code: int
    words: str = ""
    """srun's, where the rank was killed and left no error of its own."""


def first_failure(paths: AttemptPaths, *, num_ranks: int) -> Failure | None:
    """The cause among ranks of this machine: one that was killed comes before those that noticed and failed in turn."""
    records = read_ranks(paths)
    gone = [r for r in records if r.is_gone]
    if gone:
        return _killed(paths, rank=gone[0].rank, where=f"process {gone[0].pid}", why=_USUAL)
    return _first_record(records) or _missing(paths, records=records, num_ranks=num_ranks)


def first_failure_of_step(paths: AttemptPaths, *, num_ranks: int, words: str) -> Failure | None:
    """The cause among ranks that srun ran on any nodes and that are all over; None where each of them finished.

    srun ends the others when one fails, so records that still say running are many; its first words, somewhere among
    `words`, name the cause.
    """
    records = read_ranks(paths)
    finished = {r.rank for r in records if r.state is RankState.FINISHED}
    if len(finished) == num_ranks:
        return None
    said = _SRUN.search(words)
    if said is None:
        return _first_record(records) or _missing(paths, records=records, num_ranks=num_ranks)
    rank, where = int(said["rank"]), f"on {said['node']}"
    own = _first_record([r for r in records if r.rank == rank])
    if own is not None:
        return own
    if rank not in {r.rank for r in records}:
        text = f"error: rank {rank} ({where}) ended before it left a record: {said['words']}" + disk_note(paths.root)
        return Failure(rank=rank, text=text, exit_code=ExitCode.EXPERIMENT, words=said["words"])
    killed = _killed(paths, rank=rank, where=where, why=f"srun says: {said['words']}; usual are {_USUAL}")
    return replace(killed, words=said["words"])


def _first_record(records: Sequence[RankRecord]) -> Failure | None:
    failed = [r for r in records if r.state is RankState.FAILED]
    failed = failed or [r for r in records if r.state is RankState.INTERRUPTED]
    if not failed:
        return None
    first = min(failed, key=lambda r: r.time)
    return Failure(rank=first.rank, text=first.error, exit_code=first.exit_code)


def _missing(paths: AttemptPaths, *, records: Sequence[RankRecord], num_ranks: int) -> Failure | None:
    missing = set(range(num_ranks)) - {r.rank for r in records}
    if not missing:
        return None
    text = "error: the rank ended before it left a record" + disk_note(paths.root)
    return Failure(rank=min(missing), text=text, exit_code=ExitCode.EXPERIMENT)


def _killed(paths: AttemptPaths, *, rank: int, where: str, why: str) -> Failure:
    text = _KILLED.format(rank=rank, where=where, why=why) + disk_note(paths.root)
    return Failure(rank=rank, text=text, exit_code=ExitCode.EXPERIMENT)


def triage(failure: Failure, *, log: Path, root: Path) -> str:
    """One screen: the first failing rank, its error, its log's last lines."""
    lines = _last_lines(log.read_text(errors="replace").splitlines() if log.exists() else [])
    tail = "".join(f"\n  | {line[:160]}" for line in lines)
    how = "was asked to end" if failure.exit_code == ExitCode.INTERRUPTED else "failed first"
    return f"rank {failure.rank} {how}\n{failure.text}\nlog: {log}{tail}\nrun: {root}"


def _last_lines(lines: Sequence[str]) -> Sequence[str]:
    """The end of a log; of a crash in native code the head of what faulthandler wrote, which begins where it was."""
    fatal = [number for number, line in enumerate(lines) if line.startswith("Fatal Python error")]
    current = (
        [number for number in range(fatal[-1], len(lines)) if lines[number].startswith("Current thread")]
        if fatal
        else []
    )
    if not current:
        return lines[-_LOG_LINES:]
    return [lines[fatal[-1]], *lines[current[0] : current[0] + _LOG_LINES - 1]]

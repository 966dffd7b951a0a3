"""How a life of a job ended, from its log and its ranks' records. Reads only, and asks no Slurm: a container has none.

Slurm says in the job's log why it ends a job, and srun in the same file what became of the ranks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import ExitCode
from launcher.interruption import VACATE, WARNING
from launcher.paths import AttemptPaths
from launcher.records import RankState, read_ranks
from launcher.slurm.lives import Cause
from launcher.triage import Failure, first_failure_of_step

LIFE = "launcher: life"
"""What the beginning of a life prints, so that words of the life before are not taken for its own."""

_JOB = re.compile(r"\*\*\* JOB \S+ ON \S+ CANCELLED AT \S+(?: DUE TO (?P<why>.*?))? \*\*\*", re.IGNORECASE)
_NODE = re.compile(r"^srun: error: Node failure on ", re.MULTILINE)
_WHY = (
    ("TIME LIMIT", Cause.TIMEOUT),
    ("PREEMPTION", Cause.PREEMPTED),
    ("NODE", Cause.NODE_FAILURE),
    ("JOB REQUEUE", Cause.REQUEUED),
)
"""How Slurm's reason begins (22.05 slurmd/slurmstepd/req.c, _handle_signal_container); a cancelled job has none."""

_SIGNALS = {"User defined signal 2": Cause.TIMEOUT, "Terminated": Cause.PREEMPTED}
"""srun's words for a rank that a request to end found before it could note it."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """`failure` is there where the cause is FAILED."""

    cause: Cause
    failure: Failure | None = None


def words_of_life(log: Path) -> str:
    """What was printed since the newest life began."""
    text = log.read_text(errors="replace") if log.exists() else ""
    return text[max(text.rfind(f"\n{LIFE}"), 0) :]


def slurms_cause(words: str) -> Cause | None:
    """Why Slurm ended the job, by its own words; None where it did not."""
    said = _JOB.search(words)
    if said is not None:
        why = (said["why"] or "").upper()
        return next((cause for begin, cause in _WHY if why.startswith(begin)), Cause.CANCELLED)
    return Cause.NODE_FAILURE if _NODE.search(words) else None


def ending(paths: AttemptPaths, *, num_ranks: int, words: str, srun_code: int) -> Ending:
    """The ending of a life whose ranks are all over.

    Slurm's words come before the ranks' errors: a rank whose peer's node died fails too.
    """
    states = [record.state for record in read_ranks(paths)]
    if srun_code == 0 and states == [RankState.FINISHED] * num_ranks:
        return Ending(cause=Cause.FINISHED)
    cause = slurms_cause(words)
    if cause is not None:
        return Ending(cause=cause)
    failure = first_failure_of_step(paths, num_ranks=num_ranks, words=words)
    if failure is None:
        text = f"error: srun ended with {srun_code}, after every rank had finished"
        failure = Failure(rank=0, text=text, exit_code=ExitCode.EXPERIMENT)
    asked = interrupted_by(paths) if failure.exit_code == ExitCode.INTERRUPTED else _SIGNALS.get(failure.words)
    return Ending(cause=asked) if asked is not None else Ending(cause=Cause.FAILED, failure=failure)


def interrupted_by(paths: AttemptPaths) -> Cause | None:
    """What the ranks were asked by, where they ended after a step because of it."""
    texts = [record.error for record in read_ranks(paths) if record.state is RankState.INTERRUPTED]
    found = {VACATE: Cause.PREEMPTED, WARNING: Cause.TIMEOUT}
    return next((cause for number, cause in found.items() if any(number.name in text for text in texts)), None)

"""The lives of an attempt: a requeued job runs its script again in the same folder, and each time is a life.

Owns their record, attempts.jsonl, what is put away between two of them, and whether there is another.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

from launcher.paths import AttemptPaths
from launcher.records import ProgressReader, read_ranks
from launcher.schema.cluster import RestartConfig
from launcher.steps import read_steps, write_steps
from megatron_setup.iterations import complete_saves, number_of


class Cause(StrEnum):
    """Why a life ended. The first three have a budget of restarts, in `cluster.restarts` under the same name."""

    TIMEOUT = "timeout"
    PREEMPTED = "preempted"
    NODE_FAILURE = "node_failure"
    REQUEUED = "requeued"
    """Somebody typed scontrol requeue."""

    CANCELLED = "cancelled"
    FAILED = "failed"
    FINISHED = "finished"


RESTARTED = (Cause.TIMEOUT, Cause.PREEMPTED, Cause.NODE_FAILURE, Cause.REQUEUED)
"""Where the job may run again."""


@dataclass(frozen=True, kw_only=True)
class Life:
    """One life, a line of attempts.jsonl. Times are seconds since the epoch."""

    life: int
    """Counted from 1."""

    job: str
    cause: Cause
    nodes: tuple[str, ...]
    """Those whose ranks left a record."""

    began: float | None
    """Rank 0's first sign; None where it gave none."""

    ended: float
    first_step: int | None
    """None where it took no step, as the next too."""

    last_step: int | None
    saved_step: int
    """The newest whole save of the attempt; 0 where there is none."""


def read_lives(paths: AttemptPaths) -> list[Life]:
    """The lives that are over, the first one first."""
    try:
        lines = paths.lives.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    found = [json.loads(line) for line in lines]
    return [Life(**(d | {"cause": Cause(d["cause"]), "nodes": tuple(d["nodes"])})) for d in found]


def is_open(paths: AttemptPaths) -> bool:
    """The newest life has no line yet: it runs, or ended without a word of its own."""
    return len(read_lives(paths)) == _num_put_away(paths)


def close_life(paths: AttemptPaths, *, job: str, cause: Cause) -> list[Life]:
    """Write the line of the life that has just ended; all lives, it being the last."""
    lives = read_lives(paths)
    before = lives[-1] if lives else None
    own = [r.step for r in read_steps(paths.steps) if before is None or r.step > before.saved_step]
    signs = [e.time for e in ProgressReader(paths.progress).new_events() if before is None or e.time > before.ended]
    life = Life(
        life=len(lives) + 1,
        job=job,
        cause=cause,
        nodes=tuple(sorted({record.host for record in read_ranks(paths)})),
        began=min(signs, default=None),
        ended=time.time(),
        first_step=min(own, default=None),
        last_step=max(own, default=None),
        saved_step=_newest_save(paths),
    )
    with paths.lives.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(life)) + "\n")
    return [*lives, life]


def put_away(paths: AttemptPaths) -> None:
    """Clear the folder of the life that is over, for the next: its ranks' records, its store's address, its outcome.

    The saves stay. Steps after the newest one are taken again, so their lines go.
    """
    if paths.steps.exists():
        newest = _newest_save(paths)
        write_steps(paths.steps, records=[r for r in read_steps(paths.steps) if r.step <= newest])
    ranks, folder = paths.rank(0).parent, paths.life(_num_put_away(paths) + 1)
    if paths.outcome.exists():
        paths.outcome.rename(ranks / paths.outcome.name)
    folder.parent.mkdir(exist_ok=True)
    ranks.rename(folder)
    ranks.mkdir()


def why_not_again(lives: Sequence[Life], *, restarts: RestartConfig) -> str:
    """Why the job is not to run again after the last of its lives, with what to type; empty where it may.

    Only of a life that Slurm ended: what a person ended or requeued is the person's. A budget for each cause, and no
    retry without progress. A time limit that is too short for one save is so again; what else Slurm does to a job can
    come too early by chance, so there it takes two lives in a row.
    """
    last = lives[-1]
    budgets = {
        Cause.TIMEOUT: restarts.timeout,
        Cause.PREEMPTED: restarts.preempted,
        Cause.NODE_FAILURE: restarts.node_failure,
    }
    if last.cause not in budgets:
        return ""
    counts = f"{len(lives)} {'life' if len(lives) == 1 else 'lives'}: " + ", ".join(
        f"{n} {cause}" for cause in budgets if (n := sum(life.cause is cause for life in lives))
    )
    used = sum(life.cause is last.cause for life in lives)
    if used > budgets[last.cause]:
        return (
            f"error: cluster.restarts.{last.cause} is {budgets[last.cause]}, the job ended so {used} time(s)\n"
            f"  why:    {counts}; the newest save is of step {last.saved_step}\n"
            f"hint: cluster.restarts.{last.cause}={used}"
        )
    saved = [0, *(life.saved_step for life in lives)]
    barren = 1 if last.cause is Cause.TIMEOUT else 2
    if len(lives) >= barren and saved[-1] == saved[-1 - barren]:
        return (
            f"error: the job saved no new step in {'its last life' if barren == 1 else 'two lives'}, and would not in "
            f"the next\n"
            f"  why:    {counts}; the newest save is of step {last.saved_step}\n"
            f"hint: checkpoint=save checkpoint.save_interval=STEPS, or a longer cluster.timeout_min"
        )
    return ""


def _num_put_away(paths: AttemptPaths) -> int:
    return len(list(paths.life(1).parent.glob("life_*")))


def _newest_save(paths: AttemptPaths) -> int:
    numbers = [number_of(path) for path in complete_saves(paths.saves)]
    return max((number for number in numbers if number is not None), default=0)

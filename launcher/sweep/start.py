"""Starts the points of a sweep that are to run: one after another on this machine, or as Slurm arrays.

Judging is `launcher.sweep.points`', crash-safety of arrays is `launcher.sweep.arrays`'.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console

from launcher.errors import ExitCode, Interrupted, LauncherError, SubmissionError
from launcher.outcome import write_outcome
from launcher.paths import AttemptPaths, Outputs, SweepPaths
from launcher.slurm.code import copy_code
from launcher.slurm.queue import PatientQueue, max_array_size
from launcher.submission import read_submission
from launcher.submit import start_local, write_attempt
from launcher.sweep.arrays import ArrayRecord, submit_array
from launcher.sweep.expand import Expansion
from launcher.sweep.groups import Group, chunks
from launcher.sweep.points import Point, State
from launcher.sweep.record import PointRecord, SweepRecord, write_sweep
from launcher.watch import watch_local

_POLL_S = 2.0
_GRACE_S = 10.0


def run_in_turn(points: Sequence[Point], *, console: Console) -> dict[int, AttemptPaths]:
    """Run the points on this machine, each to its end; the attempts by point's number. A failed one stops no other."""
    attempts: dict[int, AttemptPaths] = {}
    for done, point in enumerate(points):
        plan = point.priced
        attempt = attempts[point.number] = write_attempt(point.composed, plan=plan)
        console.print(f"point {point.number} ({done + 1} of {len(points)}): {point.name}", highlight=False)
        try:
            job = start_local(attempt, plan=plan)
            watch_local(job, paths=attempt, num_ranks=plan.layout.world_size, console=console)
        except Interrupted:  # the launcher was asked to end
            raise
        except LauncherError as error:
            console.print(str(error), markup=False, highlight=False, soft_wrap=True)
            if not attempt.outcome.exists():
                write_outcome(attempt, state="refused", exit_code=error.exit_code, error=str(error))
    return attempts


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """What sbatch took and what it refused: the attempts by point's number, and its words about the refused."""

    attempts: dict[int, AttemptPaths]
    refused: dict[int, AttemptPaths]
    arrays: tuple[ArrayRecord, ...]
    refusals: tuple[str, ...]


def submit_groups(groups: Sequence[Group], *, sweep: SweepPaths, outputs: Outputs, after: str) -> Submitted:
    """Queue every group, in arrays that the cluster takes. With `cluster.max_gpus` an array waits for those before it,
    and for the jobs `after`: each alone keeps to the limit. A refused group stops no other."""
    code = copy_code(outputs)
    attempts: dict[int, AttemptPaths] = {}
    refused: dict[int, AttemptPaths] = {}
    arrays: list[ArrayRecord] = []
    refusals: list[str] = []
    for group in groups:
        for part in chunks(group.points, size=group.array_size or max_array_size()):
            made = {point.number: write_attempt(point.composed, plan=point.priced) for point in part}
            try:
                array = submit_array(
                    list(made.values()),
                    config=part[0].config,
                    sweep=sweep,
                    code=code,
                    limit=group.at_once,
                    after=after if group.at_once is not None else "",
                )
            except SubmissionError as error:
                refusals.append(str(error))
                refused |= made
                continue
            attempts |= made
            arrays.append(array)
            after = array.job or after
    return Submitted(attempts=attempts, refused=refused, arrays=tuple(arrays), refusals=tuple(refusals))


def running_arrays(points: Iterable[Point]) -> str:
    """The Slurm jobs of the points that are running already, joined by colons as sbatch's dependencies are."""
    found = [s for p in points if p.state is State.RUNNING and p.attempt and (s := read_submission(p.attempt))]
    return ":".join(dict.fromkeys(s.job.partition("_")[0] for s in found if s.is_slurm))


def wait_for_all(attempts: Iterable[AttemptPaths]) -> None:
    """Until every attempt has an outcome. One whose job has left Slurm without (a time limit, say) gets one here, after
    the time that an outcome may take over a shared file system."""
    waiting = [(attempt, s.job) for attempt in attempts if (s := read_submission(attempt))]
    gone: dict[str, float] = {}
    queue = PatientQueue()
    while waiting := [(attempt, job) for attempt, job in waiting if not attempt.outcome.exists()]:
        states = queue.states(job for _, job in waiting)
        for attempt, job in waiting:
            state = states.get(job)
            if state is None or state.is_active or time.monotonic() - gone.setdefault(job, time.monotonic()) < _GRACE_S:
                continue
            text = f"error: Slurm ended job {job}: {state.state} ({state.detail})"
            write_outcome(attempt, state="failed", exit_code=ExitCode.EXPERIMENT, error=text)
        time.sleep(_POLL_S)


def write_points(
    expansion: Expansion,
    *,
    points: Sequence[Point],
    sweep: SweepPaths,
    attempts: Mapping[int, AttemptPaths],
    refused: Mapping[int, AttemptPaths],
) -> None:
    """Record every point and what became of it. Raises OSError."""
    root = sweep.outputs.root.resolve()
    records: list[PointRecord] = []
    states = dict.fromkeys(attempts, "submitted") | dict.fromkeys(refused, "refused")
    made = {**attempts, **refused}
    for point in points:
        attempt = made.get(point.number, point.attempt)
        records.append(
            PointRecord(
                number=point.number,
                words=expansion.points[point.number - 1],
                state=states.get(point.number, point.state.value),
                reasons=point.reasons,
                twin=point.twin or None,
                attempt=str(attempt.root.resolve().relative_to(root)) if attempt is not None else None,
                num_ranks=0 if attempt is None else point.priced.layout.world_size,
                num_gpus=0 if attempt is None else point.priced.num_gpus,
            )
        )
    write_sweep(
        sweep,
        record=SweepRecord(fixed=expansion.fixed, num_excluded=expansion.num_excluded, points=tuple(records)),
    )

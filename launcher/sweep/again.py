"""Points of a sweep that are queued again: as arrays, under the sweep's limit of GPUs, so that they stay its points.

Which runs may be queued again is `launcher.requeue`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from launcher.errors import SubmissionError
from launcher.paths import ArrayPaths, AttemptPaths, RunPaths, SweepPaths
from launcher.schema import RunConfig
from launcher.slurm.code import copy_code
from launcher.slurm.queue import max_array_size
from launcher.slurm.refused import avoiding
from launcher.submission import read_submission
from launcher.submit import repeat_attempt, running_attempts
from launcher.sweep.arrays import read_array, submit_array
from launcher.sweep.groups import chunks, limit_of, signature


def sweep_of(attempt: AttemptPaths) -> SweepPaths | None:
    """The sweep whose array ran the attempt, told by the link to the array's logs; None for a job of its own."""
    return ArrayPaths(attempt.logs.resolve().parent).sweep if attempt.logs.is_symlink() else None


def requeue_points(configs: Mapping[AttemptPaths, RunConfig], *, sweep: SweepPaths) -> None:
    """Queue the attempts' runs again, by what they ask of sbatch; the caller holds the sweep's lock.

    Raises SubmissionError with all of sbatch's refusals, after the rest is queued; and OSError.
    """
    code, after = copy_code(sweep.outputs), _running_jobs(sweep)
    asked = {paths: avoiding(config, run=paths.run) for paths, config in configs.items()}
    refusals: dict[str, None] = {}
    for part in _parts(asked):
        config = asked[part[0]]
        limit = limit_of(config)
        attempts = [repeat_attempt(paths, config=configs[paths]) for paths in part]
        first = after if limit is not None else ""
        try:
            array = submit_array(attempts, config=config, sweep=sweep, code=code, limit=limit, after=first)
        except SubmissionError as error:
            refusals[str(error)] = None
            continue
        print(f"submitted job {array.job}: {len(attempts)} run(s) of sweep {sweep.root.name}")
        after = array.job or after
    if refusals:
        raise SubmissionError("\n\n".join(refusals))


def _parts(configs: Mapping[AttemptPaths, RunConfig]) -> Iterator[Sequence[AttemptPaths]]:
    """Those that make an array together: they ask the same of sbatch, and are as many as it takes."""
    groups: dict[str, list[AttemptPaths]] = {}
    for paths, config in configs.items():
        groups.setdefault(signature(config), []).append(paths)
    for members in groups.values():
        yield from chunks(members, size=configs[members[0]].cluster.max_array_size or max_array_size())


def _running_jobs(sweep: SweepPaths) -> str:
    """The jobs of the sweep's arrays that are on, joined by colons as sbatch's dependencies are."""
    arrays = [array for array in sweep.outputs.arrays() if array.sweep == sweep]
    folders = dict.fromkeys(Path(folder).parent for array in arrays for folder in read_array(array).attempts)
    running = running_attempts(RunPaths(folder) for folder in folders)
    found = [s for attempt in running.values() if (s := read_submission(attempt)) is not None and s.is_slurm]
    return ":".join(dict.fromkeys(s.job.partition("_")[0] for s in found))

"""Groups to Slurm arrays, so that a launcher may die at any moment: nothing is submitted twice, nothing is lost.

An array's record is written before sbatch, under a job name that no other array has; its job follows. A later launcher
that finds a record without a job asks Slurm for the name: what is there is adopted, what is not is free to be run.
"""

from __future__ import annotations

import fcntl
import os
import time
import uuid
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from submitit.core.utils import DelayedSubmission, JobPaths

from launcher.errors import ExitCode, SubmissionError
from launcher.files import read_json, write_json
from launcher.outcome import write_outcome
from launcher.paths import ArrayPaths, AttemptPaths, Outputs, RunPaths, SweepPaths
from launcher.schema import RunConfig
from launcher.schema.cluster import ClusterKind
from launcher.slurm.parameters import interpreter, parameters
from launcher.slurm.queue import job_named
from launcher.slurm.submission import submit_all
from launcher.submission import write_submission

_SETTLE_S = 5.0
"""A killed launcher's sbatch may still be on its way to the controller; after this long it has arrived."""


@dataclass(frozen=True, kw_only=True)
class ArrayRecord:
    """`name` is the job's in Slurm. `job` is null before sbatch has answered, and empty where it never will."""

    name: str
    attempts: tuple[str, ...]
    """Folders, by array index."""

    time: float
    """When it was written."""

    job: str | None = None

    def element(self, index: int) -> str:
        """The job id of an element: submitit makes no array of a single one."""
        assert self.job, "sbatch has answered"
        return f"{self.job}_{index}" if len(self.attempts) > 1 else self.job


def read_array(paths: ArrayPaths) -> ArrayRecord:
    """The record of an array that has one."""
    data: dict[str, Any] = read_json(paths.record)
    return ArrayRecord(name=data["name"], attempts=tuple(data["attempts"]), time=data["time"], job=data["job"])


def element_of(paths: ArrayPaths, *, variables: Mapping[str, str]) -> tuple[AttemptPaths, str]:
    """The attempt and the job's id of the element that Slurm's variables name. An array of one is a plain job without
    an index."""
    index = variables.get("SLURM_ARRAY_TASK_ID")
    attempt = AttemptPaths(Path(read_array(paths).attempts[int(index or "0")]))
    return attempt, variables["SLURM_JOB_ID"] if index is None else f"{variables['SLURM_ARRAY_JOB_ID']}_{index}"


@contextmanager
def only_submitter(sweep: SweepPaths) -> Generator[None]:
    """Hold the sweep's lock, which ends with the process. Raises SubmissionError where another launcher has it."""
    sweep.root.mkdir(parents=True, exist_ok=True)
    with sweep.lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SubmissionError(
                f"error: another launcher is submitting {sweep.root}\nhint: the same words again, a little later"
            ) from None
        yield


def submit_array(
    attempts: Sequence[AttemptPaths], *, config: RunConfig, sweep: SweepPaths, code: Path, limit: int | None, after: str
) -> ArrayRecord:
    """Queue the attempts as one array, `limit` at once, not before the jobs `after` (ids with colons) have ended.

    Raises SubmissionError with sbatch's words; the attempts' outcome is then refused.
    """
    array = sweep.new_array()
    for attempt in attempts:
        attempt.logs.symlink_to(os.path.relpath(array.logs, attempt.root))
    record = ArrayRecord(
        name=f"{sweep.root.name}-{uuid.uuid4().hex[:8]}",
        attempts=tuple(str(attempt.root.absolute()) for attempt in attempts),
        time=time.time(),
    )
    write_json(array.record, data=asdict(record))
    asked = array_parameters(config, array=array, name=record.name, code=code, limit=limit, after=after)
    try:
        jobs = submit_all(attempts, logs=array.logs, python=interpreter(config), asked=asked)
    except SubmissionError as error:
        _give_up(array, record=record, text=str(error))
        raise
    return _submitted(array, record=record, job=jobs[0].job_id.partition("_")[0])


def array_parameters(
    config: RunConfig, *, array: ArrayPaths, name: str, code: Path, limit: int | None, after: str
) -> dict[str, Any]:
    """submitit's parameters of an array: those of any of its points, but for the folder, the name and the throttle."""
    asked = parameters(config, attempt=AttemptPaths(array.root), code=code, package="launcher.sweep")
    first = [asked["dependency"]] if "dependency" in asked else []
    dependency = ",".join([*first, *([f"afterany:{after}"] if after else [])])
    asked |= {
        "job_name": name,
        # submitit's own default is 256 at once
        "array_parallelism": len(read_array(array).attempts) if limit is None else limit,
    }
    return asked | ({"dependency": dependency} if dependency else {})


def _submitted(array: ArrayPaths, *, record: ArrayRecord, job: str) -> ArrayRecord:
    """Each attempt gets its job's id, then the record: a record with a job is complete."""
    done = replace(record, job=job)
    for index, attempt in enumerate(done.attempts):
        write_submission(AttemptPaths(Path(attempt)), cluster=ClusterKind.slurm, job=done.element(index))
    write_json(array.record, data=asdict(done))
    return done


def _give_up(array: ArrayPaths, *, record: ArrayRecord, text: str) -> None:
    for attempt in record.attempts:
        write_outcome(AttemptPaths(Path(attempt)), state="refused", exit_code=ExitCode.SUBMISSION, error=text)
    write_json(array.record, data=asdict(replace(record, job="")))


def adopt_orphans(outputs: Outputs, *, own: SweepPaths | None = None, run: RunPaths | None = None) -> list[ArrayRecord]:
    """Arrays that a killed launcher handed to Slurm and could not record: now they are; those Slurm has not are free.

    `own` is the sweep whose lock we hold; with `run` only arrays that have an attempt of it are looked at. Raises
    SubmissionError where a launcher is submitting another one just now.
    """
    adopted: list[ArrayRecord] = []
    for array in outputs.arrays():
        record = read_array(array)
        if record.job is not None or (run is not None and not _has_attempt_of(record, run=run)):
            continue
        with nullcontext() if array.sweep == own else only_submitter(array.sweep):
            time.sleep(max(0.0, min(_SETTLE_S, record.time + _SETTLE_S - time.time())))
            job = job_named(record.name)
            if job is None:
                _give_up(array, record=record, text="error: its launcher was killed before sbatch")
                continue
            _move_pickles(array, record=replace(record, job=job))
            adopted.append(_submitted(array, record=record, job=job))
    return adopted


def _has_attempt_of(record: ArrayRecord, *, run: RunPaths) -> bool:
    return any(Path(attempt).parent == run.root.absolute() for attempt in record.attempts)


def _move_pickles(array: ArrayPaths, *, record: ArrayRecord) -> None:
    """Do what submitit does after sbatch: a rank waits a minute for the pickle under its job's name."""
    for path in array.logs.glob("*.pkl"):
        if path.name.endswith("_submitted.pkl"):
            continue
        (attempt,) = DelayedSubmission.load(path).args
        job = record.element(record.attempts.index(attempt))
        path.rename(JobPaths(array.logs, job_id=job).submitted_pickle)

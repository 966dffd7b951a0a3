"""The end of a job's script: the cause among ranks that srun ended one after the other, the outcome, the exit code."""

from dataclasses import asdict
from pathlib import Path

import pytest

from launcher.compose import compose
from launcher.errors import ExitCode
from launcher.files import write_json
from launcher.outcome import read_outcome
from launcher.paths import AttemptPaths, RunPaths
from launcher.records import RankRecord, RankState
from launcher.resolved import dump_resolved
from launcher.slurm.finish import finish
from launcher.slurm.lives import Cause, read_lives

FINISHED, FAILED, RUNNING = RankState.FINISHED, RankState.FAILED, RankState.RUNNING


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptPaths:
    """Two ranks were planned; rank 0's log, where srun's words go, is there."""
    paths = RunPaths(tmp_path / "run").new_attempt()
    write_json(paths.plan, data={"layout": {"world_size": 2}})
    paths.logs.mkdir()
    paths.log("7", rank=0).write_text("a line of rank 0\n")
    return paths


def record(
    paths: AttemptPaths, rank: int, state: RankState, *, time: float = 0.0, code: int = 0, error: str = ""
) -> None:
    data = RankRecord(rank=rank, pid=1, host=f"node{rank}", state=state, time=time, exit_code=code, error=error)
    write_json(paths.rank(rank), data=asdict(data))


def srun_says(paths: AttemptPaths, *lines: str) -> None:
    with paths.log("7", rank=0).open("a") as log:
        log.writelines(f"srun: error: {line}\n" for line in lines)


def test_all_ranks_finished(attempt: AttemptPaths) -> None:
    record(attempt, 0, FINISHED)
    record(attempt, 1, FINISHED)
    assert finish(attempt, job="7", srun_code=0) is ExitCode.OK
    outcome = read_outcome(attempt)
    assert outcome is not None
    assert (outcome.state, outcome.exit_code) == ("finished", 0)


def test_the_rank_that_srun_names_first_is_the_cause(attempt: AttemptPaths) -> None:
    """Rank 0 lost its peer and wrote an error first; rank 1 had crashed without a word."""
    record(attempt, 0, FAILED, time=1.0, code=5, error="error: connection closed by peer")
    record(attempt, 1, RUNNING)
    srun_says(attempt, "node1: task 1: Segmentation fault", "node0: task 0: Exited with exit code 5")
    assert finish(attempt, job="7", srun_code=139) is ExitCode.EXPERIMENT
    outcome = read_outcome(attempt)
    assert outcome is not None
    assert outcome.state == "failed"
    assert "rank 1 failed first" in outcome.error
    assert "on node1" in outcome.error
    assert "Segmentation fault" in outcome.error


def test_the_records_error_and_exit_code_are_the_jobs(attempt: AttemptPaths) -> None:
    record(attempt, 0, RUNNING)
    record(attempt, 1, FAILED, time=1.0, code=3, error="error: no GPU here")
    srun_says(attempt, "node1: task 1: Exited with exit code 3", "node0: task 0: Killed")
    assert finish(attempt, job="7", srun_code=137) is ExitCode.ENVIRONMENT
    outcome = read_outcome(attempt)
    assert outcome is not None
    assert "error: no GPU here" in outcome.error


def test_ranks_that_never_started(attempt: AttemptPaths) -> None:
    srun_says(attempt, "node0: tasks 0-1: Exited with exit code 127")
    assert finish(attempt, job="7", srun_code=127) is ExitCode.EXPERIMENT
    outcome = read_outcome(attempt)
    assert outcome is not None
    assert "rank 0 (on node0) ended before it left a record: Exited with exit code 127" in outcome.error
    assert "| a line of rank 0" in outcome.error


def test_srun_fails_after_all_ranks_finished(attempt: AttemptPaths) -> None:
    record(attempt, 0, FINISHED)
    record(attempt, 1, FINISHED)
    assert finish(attempt, job="7", srun_code=1) is ExitCode.EXPERIMENT


@pytest.mark.parametrize(
    ("name", "cause", "code", "state"),
    [
        ("SIGTERM", Cause.PREEMPTED, ExitCode.INTERRUPTED, None),
        ("SIGUSR2", Cause.TIMEOUT, ExitCode.EXPERIMENT, "failed"),
    ],
)
def test_interrupted_ranks_ask_for_another_life(
    name: str, cause: Cause, code: ExitCode, state: str | None, attempt: AttemptPaths
) -> None:
    """Nothing was saved: after a time limit that is the end."""
    attempt.resolved.write_text(dump_resolved(compose(["cluster=slurm"]).config))
    for rank in (0, 1):
        record(attempt, rank, RankState.INTERRUPTED, code=6, error=f"interrupted by {name} after step 5")
    assert finish(attempt, job="7", srun_code=0) is code
    assert [life.cause for life in read_lives(attempt)] == [cause]
    outcome = read_outcome(attempt)
    assert (None if outcome is None else outcome.state) == state


def test_a_cancelled_job_has_an_outcome(attempt: AttemptPaths) -> None:
    record(attempt, 0, RUNNING)
    with attempt.log("7", rank=0).open("a") as log:
        log.write("slurmstepd-node0: error: *** JOB 7 ON node0 CANCELLED AT 2026-11-30T21:23:56 ***\n")
    assert finish(attempt, job="7", srun_code=0) is ExitCode.EXPERIMENT
    outcome = read_outcome(attempt)
    assert outcome is not None
    assert outcome.state == "cancelled"

"""Why a life ended, by what Slurm and srun print and what the ranks leave; the words are Slurm 22.05's."""

from dataclasses import asdict
from pathlib import Path

import pytest

from launcher.files import write_json
from launcher.paths import AttemptPaths, RunPaths
from launcher.records import RankRecord, RankState
from launcher.slurm.ending import LIFE, ending, slurms_cause, words_of_life
from launcher.slurm.lives import Cause

FINISHED, FAILED, RUNNING, INTERRUPTED = (
    RankState.FINISHED,
    RankState.FAILED,
    RankState.RUNNING,
    RankState.INTERRUPTED,
)
JOB = "slurmstepd-node1: error: *** JOB 7 ON node1 CANCELLED AT 2026-11-30T21:24:56{} ***"
STEP = "slurmstepd-node1: error: *** STEP 7.0 ON node1 CANCELLED AT 2026-11-30T21:24:56 ***"
LOST = "error: connection closed by peer"


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (JOB.format(" DUE TO TIME LIMIT"), Cause.TIMEOUT),
        (JOB.format(" DUE TO PREEMPTION"), Cause.PREEMPTED),
        (JOB.format(" DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS"), Cause.NODE_FAILURE),
        ("srun: error: Node failure on node3", Cause.NODE_FAILURE),
        (JOB.format(" DUE TO JOB REQUEUE"), Cause.REQUEUED),
        (JOB.format(""), Cause.CANCELLED),
        (JOB.format(" DUE to SIGNAL Terminated"), Cause.CANCELLED),
        (STEP, None),
        ("", None),
    ],
)
def test_slurms_words(words: str, cause: Cause | None) -> None:
    assert slurms_cause(f"a line\n{words}\nanother") is cause


def test_words_of_a_former_life_are_not_this_ones(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert words_of_life(log) == ""
    log.write_text(f"{JOB.format('')}\n")
    assert slurms_cause(words_of_life(log)) is Cause.CANCELLED
    with log.open("a") as file:
        file.write(f"\n{LIFE} 2 of job 7; the last one ended with cancelled\nstep 1\n")
    assert slurms_cause(words_of_life(log)) is None
    assert words_of_life(log).endswith("step 1\n")


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptPaths:
    return RunPaths(tmp_path / "run").new_attempt()


def record(paths: AttemptPaths, *states: tuple[RankState, str]) -> None:
    for rank, (state, error) in enumerate(states):
        code = {FAILED: 5, INTERRUPTED: 6}.get(state, 0)
        data = RankRecord(
            rank=rank, pid=1, host=f"node{rank}", state=state, time=float(rank), exit_code=code, error=error
        )
        write_json(paths.rank(rank), data=asdict(data))


USR2, TERM = "interrupted by SIGUSR2 after step 5, saved", "interrupted by SIGTERM after step 5, saved"


@pytest.mark.parametrize(
    ("states", "words", "code", "cause"),
    [
        ([(FINISHED, ""), (FINISHED, "")], JOB.format(" DUE TO TIME LIMIT"), 0, Cause.FINISHED),
        ([(INTERRUPTED, USR2), (INTERRUPTED, USR2)], "", 0, Cause.TIMEOUT),
        ([(INTERRUPTED, TERM), (INTERRUPTED, TERM)], "", 0, Cause.PREEMPTED),
        ([(INTERRUPTED, TERM), (INTERRUPTED, TERM)], JOB.format(""), 0, Cause.CANCELLED),
        ([(INTERRUPTED, TERM), (FAILED, "error: no space")], "", 5, Cause.FAILED),
        ([(FAILED, LOST), (RUNNING, "")], "srun: error: Node failure on node1", 5, Cause.NODE_FAILURE),
        ([(RUNNING, ""), (RUNNING, "")], "srun: error: node0: task 0: User defined signal 2", 140, Cause.TIMEOUT),
        ([], "srun: error: node0: tasks 0-1: Terminated", 143, Cause.PREEMPTED),
        ([(FAILED, LOST), (RUNNING, "")], "srun: error: node1: task 1: Terminated", 143, Cause.PREEMPTED),
        ([(RUNNING, ""), (RUNNING, "")], "srun: error: node1: task 1: Segmentation fault", 139, Cause.FAILED),
        (
            [(RUNNING, ""), (FAILED, "error: ours")],
            "srun: error: node1: task 1: Exited with exit code 5\nsrun: error: node0: task 0: Terminated",
            5,
            Cause.FAILED,
        ),
        ([(FINISHED, ""), (FINISHED, "")], "", 1, Cause.FAILED),
    ],
)
def test_cause(states: list[tuple[RankState, str]], words: str, code: int, cause: Cause, attempt: AttemptPaths) -> None:
    record(attempt, *states)
    found = ending(attempt, num_ranks=2, words=f"{words}\n", srun_code=code)
    assert found.cause is cause
    assert (found.failure is not None) == (cause is Cause.FAILED)

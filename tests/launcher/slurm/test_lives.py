"""The lives of an attempt: their record, what is cleared between two of them, and when there is no other."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest

from launcher.compose import compose
from launcher.errors import ExitCode
from launcher.files import write_json
from launcher.outcome import read_outcome, write_outcome
from launcher.paths import AttemptPaths, RunPaths
from launcher.records import ProgressWriter, RankRecord, RankState
from launcher.resolved import dump_resolved
from launcher.schema.cluster import RestartConfig
from launcher.slurm.begin import begin
from launcher.slurm.ending import LIFE
from launcher.slurm.lives import Cause, Life, close_life, read_lives, why_not_again
from launcher.steps import StepRecord, append_step, read_steps
from megatron_setup.iterations import COMPLETE

TIMEOUT, PREEMPTED, NODE_FAILURE = Cause.TIMEOUT, Cause.PREEMPTED, Cause.NODE_FAILURE
RESTARTS = RestartConfig(timeout=2, preempted=3, node_failure=0)


def lives(*ends: tuple[Cause, int]) -> list[Life]:
    return [
        Life(
            life=number,
            job="7",
            cause=cause,
            nodes=("node1",),
            began=None,
            ended=0.0,
            first_step=None,
            last_step=None,
            saved_step=saved,
        )
        for number, (cause, saved) in enumerate(ends, start=1)
    ]


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        ([(TIMEOUT, 5)], ""),
        ([(TIMEOUT, 5), (PREEMPTED, 9), (TIMEOUT, 12)], ""),
        ([(TIMEOUT, 5), (TIMEOUT, 9), (TIMEOUT, 12)], "cluster.restarts.timeout is 2, the job ended so 3 time(s)"),
        ([(NODE_FAILURE, 5)], "cluster.restarts.node_failure is 0, the job ended so 1 time(s)"),
        ([(TIMEOUT, 0)], "saved no new step in its last life"),
        ([(TIMEOUT, 5), (TIMEOUT, 5)], "saved no new step in its last life"),
        ([(PREEMPTED, 0)], ""),
        ([(PREEMPTED, 0), (PREEMPTED, 0)], "saved no new step in two lives"),
        ([(TIMEOUT, 5), (PREEMPTED, 5)], ""),
        ([(TIMEOUT, 5), (PREEMPTED, 5), (PREEMPTED, 5)], "saved no new step in two lives"),
        ([(PREEMPTED, 0), (PREEMPTED, 0), (Cause.REQUEUED, 0)], ""),
        ([(Cause.FAILED, 0)], ""),
    ],
)
def test_whether_there_is_another_life(ends: Sequence[tuple[Cause, int]], words: str) -> None:
    why = why_not_again(lives(*ends), restarts=RESTARTS)
    assert words in why
    assert bool(words) == bool(why)


def test_the_refusal_counts_and_says_what_to_type() -> None:
    why = why_not_again(lives((PREEMPTED, 3), (TIMEOUT, 5), (TIMEOUT, 9), (TIMEOUT, 12)), restarts=RESTARTS)
    assert "4 lives: 3 timeout, 1 preempted; the newest save is of step 12" in why
    assert why.endswith("hint: cluster.restarts.timeout=3")


def save(attempt: AttemptPaths, *, step: int) -> None:
    folder = attempt.saves / f"iter_{step:07d}"
    folder.mkdir(parents=True)
    for name in (".metadata", "run_config.yaml", COMPLETE):
        (folder / name).touch()
    write_json(folder / "metadata.json", data={"sharded_backend": "torch_dist"})


def take(attempt: AttemptPaths, *steps: int) -> None:
    for step in steps:
        record = StepRecord(
            step=step, loss=1.0 / step, terms={}, value_loss=None, grad_norm=1.0, lr=0.1, num_tokens=8, seconds=1.0
        )
        append_step(attempt.steps, record=record)


def run_rank(attempt: AttemptPaths, *, state: RankState = RankState.RUNNING, error: str = "") -> None:
    data = RankRecord(rank=0, pid=1, host="node3", state=state, time=0.0, exit_code=6, error=error)
    write_json(attempt.rank(0), data=asdict(data))
    attempt.rendezvous.write_text("node3:1")
    ProgressWriter(attempt.progress)("train", done=0, total=9)


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptPaths:
    """Life 1 took steps 1 to 5 and saved step 4."""
    paths = RunPaths(tmp_path / "run").new_attempt()
    paths.resolved.write_text(dump_resolved(compose(["cluster=slurm", "cluster.restarts.timeout=1"]).config))
    paths.logs.mkdir()
    run_rank(paths)
    take(paths, 1, 2, 3, 4, 5)
    save(paths, step=4)
    return paths


def test_a_life_is_cleared_for_the_next_but_for_its_saves(attempt: AttemptPaths) -> None:
    (first,) = close_life(attempt, job="7", cause=TIMEOUT)
    assert (first.life, first.nodes, first.first_step, first.last_step, first.saved_step) == (1, ("node3",), 1, 5, 4)
    assert first.began is not None
    write_outcome(attempt, state="failed", exit_code=5)
    assert begin(attempt, job="7") is ExitCode.OK
    assert read_lives(attempt) == [first]
    assert list(attempt.rank(0).parent.iterdir()) == []
    assert not attempt.outcome.exists()
    assert [record.step for record in read_steps(attempt.steps)] == [1, 2, 3, 4]
    assert sorted(p.name for p in attempt.life(1).iterdir()) == ["outcome.json", "rank_0.json", "rendezvous"]

    run_rank(attempt)
    take(attempt, 5, 6)
    save(attempt, step=6)
    _, second = close_life(attempt, job="7", cause=PREEMPTED)
    assert (second.life, second.first_step, second.last_step, second.saved_step) == (2, 5, 6, 6)
    assert second.began is not None
    assert second.began > first.ended


@pytest.mark.parametrize(
    ("log", "error", "cause"),
    [
        ("", "", NODE_FAILURE),
        ("slurmstepd-n: error: *** JOB 7 ON n CANCELLED AT T DUE TO PREEMPTION ***\n", "", PREEMPTED),
        ("slurmstepd-n: error: *** JOB 7 ON n CANCELLED AT T DUE TO JOB REQUEUE ***\n", "", Cause.REQUEUED),
        ("", "interrupted by SIGUSR2 after step 5, saved", TIMEOUT),
    ],
    ids=["its first node died", "preempted", "requeued by hand", "its shell died after the ranks"],
)
def test_a_life_that_wrote_no_end_is_closed(log: str, error: str, cause: Cause, attempt: AttemptPaths) -> None:
    """Slurm's words in the log are those of this life only."""
    attempt.log("7", rank=0).write_text(f"*** JOB 7 ON n CANCELLED AT T DUE TO TIME LIMIT ***\n\n{LIFE} 2\n{log}")
    if error:
        run_rank(attempt, state=RankState.INTERRUPTED, error=error)
    assert begin(attempt, job="7") is ExitCode.OK
    assert [life.cause for life in read_lives(attempt)] == [cause]


def test_a_job_that_slurm_restarts_beyond_its_budget_ends(attempt: AttemptPaths) -> None:
    close_life(attempt, job="7", cause=TIMEOUT)
    assert begin(attempt, job="7") is ExitCode.OK
    save(attempt, step=9)
    close_life(attempt, job="7", cause=TIMEOUT)
    for _ in range(2):  # the same when it is restarted once more
        assert begin(attempt, job="7") is ExitCode.EXPERIMENT
        outcome = read_outcome(attempt)
        assert outcome is not None
        assert "cluster.restarts.timeout is 1" in outcome.error
    assert len(read_lives(attempt)) == 2

"""Runs that Slurm breaks and that go on: each is compared, bit for bit, with a run that nothing broke.

The stories run at one time, on nodes of their own, since each life of a run imports Megatron anew. A run is frozen
(SIGSTOP) before something is done to it, so that no story depends on how fast this machine is.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.errors import ExitCode
from launcher.outcome import Outcome, read_outcome
from launcher.paths import AttemptPaths, Outputs
from launcher.records import read_ranks
from launcher.slurm.lives import Cause, Life, read_lives
from launcher.steps import StepRecord, read_steps
from tests.slurm.cluster import Cluster
from tests.slurm.test_jobs import accounted, assert_nothing_is_left, job_of, launch, run, status, wait_until
from tests.slurm.test_sweeps import newest_attempts, script

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

NUM_STEPS = 120
WORDS = (
    *("job=train", f"job.num_steps={NUM_STEPS}", "job.num_prompts=8", "checkpoint=save", "checkpoint.save_interval=20"),
    *("cluster=slurm", "cluster.timeout_min=20", "cluster.signal_delay_s=600"),
)
Story = Callable[[Cluster, Path], None]


def submitted(cluster: Cluster, outputs: Path, *words: str) -> AttemptPaths:
    done = launch(cluster, *WORDS, *words, f"output_dir={outputs}")
    assert done.code == ExitCode.OK, done.text
    (attempt,) = newest_attempts(outputs)
    return attempt


def on(nodes: str, *, exclusive: bool = False) -> tuple[str, ...]:
    return (f"+cluster.sbatch.nodelist='{nodes}'", f"cluster.exclusive={str(exclusive).lower()}")


def freeze(attempt: AttemptPaths, *, life: int) -> int:
    """Stop the ranks of this life after a few steps of its own; the last step that was written down."""
    start = time.monotonic()

    def last() -> int:
        if life > 1 and not attempt.life(life - 1).exists():
            return 0
        lives, steps = read_lives(attempt), read_steps(attempt.steps)
        saved = lives[-1].saved_step if lives else 0
        return steps[-1].step if steps and steps[-1].step >= saved + 3 else 0

    while not last():
        assert time.monotonic() - start < 300, f"life {life} of {attempt.root} took no step"
        time.sleep(0.02)
    for record in read_ranks(attempt):
        os.kill(record.pid, signal.SIGSTOP)
    return last()


def was_asked(attempt: AttemptPaths) -> bool:
    """No frozen rank is left without a signal that waits for it; Slurm thaws a rank with some of its signals."""
    return all(is_moving(record.pid) for record in read_ranks(attempt))


def is_moving(pid: int) -> bool:
    try:
        found = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    except (FileNotFoundError, ProcessLookupError):
        return True
    return not found["State"].strip().startswith("T") or bool(int(found["ShdPnd"], 16))


def thaw(attempt: AttemptPaths) -> None:
    for record in read_ranks(attempt):
        with suppress(ProcessLookupError):
            os.kill(record.pid, signal.SIGCONT)


def command(cluster: Cluster, *words: str) -> None:
    """A command of Slurm's, again while its controller is away."""
    wait_until(lambda: run(cluster, *words).code == 0, what=f"success of {' '.join(words)}")


def life_of(attempt: AttemptPaths, *, number: int) -> Life:
    wait_until(lambda: len(read_lives(attempt)) >= number, what=f"end of life {number} in {attempt.root}")
    return read_lives(attempt)[number - 1]


def outcome_of(attempt: AttemptPaths) -> Outcome:
    wait_until(attempt.outcome.exists, what=f"outcome in {attempt.root}")
    outcome = read_outcome(attempt)
    assert outcome is not None
    return outcome


def finished(attempt: AttemptPaths) -> None:
    outcome = outcome_of(attempt)
    assert (outcome.state, outcome.exit_code) == ("finished", ExitCode.OK), outcome.error


def states_of(cluster: Cluster, attempt: AttemptPaths) -> list[str]:
    """What sacct has of every life of the job."""
    words = ("sacct", "--duplicates", "--noheader", "--allocations", "--parsable2", "--format=State", "--jobs")
    return run(cluster, *words, job_of(attempt)).text.split()


def unbroken(cluster: Cluster, outputs: Path) -> None:
    finished(submitted(cluster, outputs, *on("node1")))


def time_limit(cluster: Cluster, outputs: Path) -> None:
    """Slurm's warning before the time limit, once more than the budget allows; then a person has it go on.

    The node is drained meanwhile: the second life, whose limit would be the shortened one, waits.
    """
    first = submitted(cluster, outputs, *on("node3"), "cluster.restarts.timeout=1")
    step = freeze(first, life=1)
    command(cluster, "scontrol", "update", "nodename=node3", "state=drain", "reason=test")
    minutes = run(cluster, "squeue", "--noheader", "--format=%M", f"--jobs={job_of(first)}").text.partition(":")[0]
    command(cluster, "scontrol", "update", f"jobid={job_of(first)}", f"timelimit={int(minutes) + 6}")
    wait_until(lambda: was_asked(first), what="warning before the time limit")
    thaw(first)
    life = life_of(first, number=1)
    assert (life.cause, life.first_step, life.saved_step) == (Cause.TIMEOUT, 1, life.last_step)
    assert step <= life.saved_step <= step + 1
    command(cluster, "scontrol", "update", f"jobid={job_of(first)}", "timelimit=20")
    command(cluster, "scontrol", "update", "nodename=node3", "state=resume")

    step = freeze(first, life=2)
    assert launch(cluster, "requeue", job_of(first), f"output_dir={outputs}").code == ExitCode.SUBMISSION
    command(cluster, "scancel", "--signal=USR2", job_of(first))
    wait_until(lambda: was_asked(first), what="signal")
    thaw(first)
    outcome = outcome_of(first)
    assert outcome.state == "failed"
    assert "cluster.restarts.timeout is 1, the job ended so 2 time(s)" in outcome.error
    assert "hint: cluster.restarts.timeout=2" in outcome.error
    assert step <= life_of(first, number=2).saved_step <= step + 1
    assert accounted(cluster, first) == ("FAILED", "5:0")
    assert states_of(cluster, first) == ["REQUEUED", "FAILED"]
    assert status(cluster, outputs)["lives"] == 2

    done = launch(cluster, "requeue", job_of(first), f"output_dir={outputs}")
    assert done.code == ExitCode.OK, done.text
    (second,) = newest_attempts(outputs)
    finished(second)
    assert accounted(cluster, second) == ("COMPLETED", "0:0")
    again = launch(cluster, "requeue", str(second.root), f"output_dir={outputs}")
    assert again.code == ExitCode.CONFIG
    assert "has finished" in again.text


def four_lives(cluster: Cluster, outputs: Path) -> None:
    """A job of a higher partition takes the node, then an administrator requeues, then the node dies with the job's
    script, then the controller restarts, which ends no life."""
    attempt = submitted(cluster, outputs, *on("node2", exclusive=True))
    freeze(attempt, life=1)
    taking = ("sbatch", "--partition=high", "--exclusive", "--nodelist=node2", f"--output={outputs}/high.log")
    command(cluster, *taking, "--wrap", "sleep 5")
    freeze(attempt, life=2)
    command(cluster, "scontrol", "requeue", job_of(attempt))
    freeze(attempt, life=3)
    cluster.crash_node("node2")
    wait_until(lambda: "node2" in run(cluster, "sinfo", "--noheader", "--format=%N", "--states=down").text, what="down")
    cluster.start_node("node2")
    freeze(attempt, life=4)
    cluster.stop_controller()
    cluster.start_controller()
    thaw(attempt)
    finished(attempt)
    causes = [life.cause for life in read_lives(attempt)]
    assert causes == [Cause.PREEMPTED, Cause.REQUEUED, Cause.NODE_FAILURE, Cause.FINISHED]
    assert accounted(cluster, attempt) == ("COMPLETED", "0:0")
    preempted, *others = states_of(cluster, attempt)
    assert preempted in ("PREEMPTED", "REQUEUED")  # by Slurm at the end of the grace time, or by our shell before it
    assert others == ["REQUEUED", "NODE_FAIL", "COMPLETED"]


def elements_without_progress(cluster: Cluster, outputs: Path) -> None:
    """Elements of an array that are ended before they import anything: the last one's id is the array's own too.

    They run in a container, where the shell outside requeues and the module inside begins the next life. A warning of
    the time limit is final then; a wish for the nodes is not until it has come twice.
    """
    line = f"touch {outputs}/up-$SLURM_ARRAY_TASK_ID-${{SLURM_RESTART_COUNT:-0}}; sleep 600"
    python = script(
        outputs / "bin" / "python", text=f'case "$*" in *submitit*) {line};; esac\nexec {sys.executable} "$@"'
    )
    words = ("-m", "job.seed=1,2,3", f"cluster.python={python}", "cluster.container_image=/images/a.sqsh", *on("node1"))
    done = launch(cluster, *WORDS, *words, f"output_dir={outputs}")
    assert done.code == ExitCode.OK, done.text
    attempts = {job_of(attempt).partition("_")[2]: attempt for attempt in newest_attempts(outputs)}
    for index, number, restarts in (("0", "USR2", "0"), ("2", "TERM", "0"), ("2", "TERM", "1")):
        wait_until((outputs / f"up-{index}-{restarts}").exists, what=f"rank of {index}")
        command(cluster, "scancel", f"--signal={number}", job_of(attempts[index]))
    for index, causes in (("0", [Cause.TIMEOUT]), ("2", [Cause.PREEMPTED] * 2)):
        assert "saved no new step" in outcome_of(attempts[index]).error
        assert [life.cause for life in read_lives(attempts[index])] == causes
        assert accounted(cluster, attempts[index]) == ("FAILED", "5:0")
    wait_until((outputs / "up-1-0").exists, what="rank of 1")
    command(cluster, "scancel", job_of(attempts["1"]))
    assert accounted(cluster, attempts["1"])[0] == "CANCELLED"
    assert not (outputs / "up-1-1").exists()


STORIES: Mapping[str, Story] = {
    story.__name__: story for story in (time_limit, four_lives, unbroken, elements_without_progress)
}


@pytest.fixture(scope="module")
def told(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Future[Path]]]:
    """All stories, begun at one time; a result is the folder of the story's outputs."""

    def tell(name: str) -> Path:
        outputs = tmp_path_factory.mktemp(name)
        STORIES[name](cluster, outputs)
        return outputs

    with ThreadPoolExecutor(len(STORIES)) as pool:
        yield {name: pool.submit(tell, name) for name in STORIES}


def steps_in(outputs: Path) -> list[StepRecord]:
    """The steps of all attempts of the only run, as they were written."""
    (found,) = Outputs(outputs).runs()
    return [replace(r, seconds=0.0) for attempt in found.attempts() for r in read_steps(attempt.steps)]


@pytest.mark.parametrize("story", ["time_limit", "four_lives"])
def test_the_run_goes_on_bit_for_bit(story: str, told: Mapping[str, Future[Path]]) -> None:
    outputs = told[story].result()
    broken, whole = steps_in(outputs), steps_in(told["unbroken"].result())
    assert [record.step for record in whole] == list(range(1, NUM_STEPS + 1))
    assert broken == whole
    for attempt in Outputs(outputs).runs()[0].attempts():
        lives = read_lives(attempt)
        assert {life.job for life in lives} == {job_of(attempt)}
        assert [life.first_step for life in lives[1:]] == [life.saved_step + 1 for life in lives[:-1]]


def test_no_retry_without_progress(told: Mapping[str, Future[Path]]) -> None:
    told["elements_without_progress"].result()


def test_no_job_is_left(cluster: Cluster, told: Mapping[str, Future[Path]]) -> None:
    for future in told.values():
        future.result()
    assert run(cluster, "squeue", "--noheader").text == ""
    assert_nothing_is_left(cluster)

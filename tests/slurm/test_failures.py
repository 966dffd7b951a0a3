"""How runs die on a real Slurm: exit code, sacct, one screen that names the rank and the node, and nothing left behind.

The ranks of these runs never come to Megatron, so they are quick, and several are on the cluster at once.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

from launcher.errors import ExitCode
from launcher.files import read_json, write_json
from launcher.outcome import read_outcome
from launcher.paths import AttemptPaths
from launcher.records import read_ranks
from tests.launcher.runs import QUICK, ROOT, Done, only_attempt
from tests.slurm.cluster import Cluster
from tests.slurm.test_jobs import WORDS, accounted, assert_nothing_is_left, job_of, launch, run, status, wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

TWO_NODES = (*WORDS, "cluster.nodes=2", "cluster.num_processes=2")


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A launcher that stays with its run: `cluster.wait=true`."""

    outputs: Path
    process: "subprocess.Popen[str]"

    def end(self) -> Done:
        text, _ = self.process.communicate(timeout=300)
        return Done(code=self.process.returncode, text=text)

    @property
    def attempt(self) -> AttemptPaths:
        return only_attempt(self.outputs)


def interpreter(folder: Path, *, line: str) -> str:
    """A Python that runs a line of shell before a rank, and nothing special otherwise."""
    path = folder / "python"
    folder.mkdir(exist_ok=True)
    path.write_text(f'#!/bin/bash\ncase "$*" in *submitit*) {line};; esac\nexec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return str(path)


class Start(Protocol):
    """Starts a launcher that waits; its ranks run the line of shell first."""

    def __call__(self, *words: str, folder: Path, line: str, outputs: Path | None = None) -> Waiting: ...


@pytest.fixture
def start(cluster: Cluster) -> Iterator[Start]:
    """Ends with the launchers that a failed test leaves, and with their jobs."""
    started: list[Waiting] = []

    def make(*words: str, folder: Path, line: str, outputs: Path | None = None) -> Waiting:
        outputs = folder / "outputs" if outputs is None else outputs
        python = f"cluster.python={interpreter(folder, line=line)}"
        command = [sys.executable, "-m", "launcher", *words, "cluster.wait=true", python, f"output_dir={outputs}"]
        environment = dict(cluster.environment)
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        started.append(Waiting(outputs=outputs, process=process))
        return started[-1]

    yield make
    left = [waiting for waiting in started if waiting.process.poll() is None]
    for waiting in left:
        waiting.process.kill()
        waiting.process.communicate()
    if left:
        run(cluster, "scancel", "--me")


def after_its_record(outputs: Path, *, rank: int, then: str) -> str:
    """A line that does something to a rank, which it knows as $$, once its record is on the disk."""
    record = f"{outputs}/*/attempt_1/ranks/rank_{rank}.json"
    wait = f"while ! ls {record} >/dev/null 2>&1; do sleep 0.1; done"
    return f'[ "$SLURM_PROCID" != {rank} ] || ( {wait}; {then} ) &'


def assert_failed(cluster: Cluster, waiting: Waiting, *, words: tuple[str, ...]) -> None:
    """The launcher's exit code and sacct's say so; the text, of one screen, has the words; the outcome has the text."""
    done = waiting.end()
    assert done.code == ExitCode.EXPERIMENT, done.text
    assert accounted(cluster, waiting.attempt) == ("FAILED", "5:0")
    outcome = read_outcome(waiting.attempt)
    assert outcome is not None
    assert (outcome.state, outcome.exit_code) == ("failed", ExitCode.EXPERIMENT)
    assert len(outcome.error.splitlines()) < 24
    for part in words:
        assert part in outcome.error
        assert part in done.text
    row = status(cluster, waiting.outputs)
    assert (row["state"], row["exit_code"]) == ("failed", ExitCode.EXPERIMENT)


def test_ranks_that_crash_and_a_dependency_that_failed(cluster: Cluster, start: Start, tmp_path: Path) -> None:
    """One crashes in native code, one is killed, one ends before it is a rank at all; four nodes hold them."""
    folders = {name: tmp_path / name for name in ("segv", "kill", "early", "later")}
    lines = {
        "segv": after_its_record(folders["segv"] / "outputs", rank=1, then="kill -SEGV $$"),
        "kill": after_its_record(folders["kill"] / "outputs", rank=0, then="kill -KILL $$"),
        "early": '[ "$SLURM_PROCID" != 1 ] || kill -SEGV $$',
    }
    runs = {name: start(*TWO_NODES, folder=folders[name], line=line) for name, line in lines.items()}
    assert_failed(
        cluster, runs["early"], words=("rank 1 failed first", "(on node", "before it left a record: Segmenta")
    )
    dead = ("+cluster.sbatch.dependency='afterok:" + job_of(runs["early"].attempt) + "'", "job.seed=2")
    later = start(*WORDS, *dead, folder=folders["later"], line="true")
    crashed = ("rank 1 failed first", "(on node", "was killed", "Fatal Python error: Segmentation fault", "File ")
    assert_failed(cluster, runs["segv"], words=crashed)
    assert_failed(cluster, runs["kill"], words=("rank 0 failed first", "(on node", "was killed", "out-of-memory"))
    done = later.end()
    assert done.code == ExitCode.EXPERIMENT, done.text
    assert "CANCELLED (exit 0:0, by Slurm before it started: a job that it depends on has failed)" in done.text
    assert accounted(cluster, later.attempt)[0] == "CANCELLED"
    assert read_ranks(later.attempt) == []
    assert_nothing_is_left(cluster)


def test_a_rank_that_hangs_and_a_disk_that_is_full(cluster: Cluster, start: Start, tmp_path: Path) -> None:
    """Rank 0 is stopped, and does not hear SIGTERM either; the other run's disk fills up under it."""
    stop = after_its_record(tmp_path / "hang" / "outputs", rank=0, then=f"kill -STOP $$; touch {tmp_path}/stopped")
    hanging = start(*WORDS, folder=tmp_path / "hang", line=stop)
    small = cluster.small_disk / "outputs"
    fill = f"dd if=/dev/zero of={cluster.small_disk}/filler bs=4096 2>/dev/null; sleep 1"
    full = start(*QUICK, "cluster=slurm", "job.seed=3", folder=tmp_path / "full", line=fill, outputs=small)

    done = full.end()
    assert done.code == ExitCode.EXPERIMENT, done.text
    assert f"the disk of {full.attempt.root} is full" in done.text
    assert "hint: output_dir=" in done.text
    assert accounted(cluster, full.attempt) == ("FAILED", "5:0")
    row = status(cluster, small)
    assert row["state"] == "FAILED"
    assert "its disk is full" in row["detail"]
    (cluster.small_disk / "filler").unlink()

    wait_until((tmp_path / "stopped").exists, what="rank that is stopped")
    record, two_hours_ago = hanging.attempt.rank(0), time.time() - 7260
    write_json(record, data=read_json(record) | {"time": two_hours_ago})
    event = {"stage": "step 3: train", "done": 1, "total": 4, "unit": "", "time": two_hours_ago}
    hanging.attempt.progress.write_text(json.dumps(event) + "\n")
    said = launch(cluster, "status", f"output_dir={hanging.outputs}")
    assert "RUNNING but no step for 2h" in said.text
    assert launch(cluster, "cancel", "latest", f"output_dir={hanging.outputs}").code == ExitCode.OK
    ended = hanging.end()
    assert ended.code == ExitCode.EXPERIMENT
    assert "cancelled" in ended.text
    assert accounted(cluster, hanging.attempt)[0] == "CANCELLED"
    assert_nothing_is_left(cluster)


def test_the_controller_is_restarted(cluster: Cluster, start: Start, tmp_path: Path) -> None:
    """The launcher that waits asks in vain meanwhile and goes on waiting; `status` says what is wrong."""
    line = f"touch {tmp_path}/started; while [ ! -e {tmp_path}/go ]; do sleep 0.2; done; exit 7"
    waiting = start(*WORDS, folder=tmp_path / "run", line=line)
    wait_until((tmp_path / "started").exists, what="rank")
    cluster.stop_controller()
    try:
        down = launch(cluster, "status", f"output_dir={waiting.outputs}")
        assert down.code == ExitCode.SUBMISSION
        assert "squeue failed" in down.text
        assert waiting.process.poll() is None
    finally:
        cluster.start_controller()
    assert status(cluster, waiting.outputs)["state"] == "RUNNING"
    (tmp_path / "go").touch()
    assert_failed(cluster, waiting, words=("rank 0 failed first", "(on node1)", "Exited with exit code 7"))
    assert_nothing_is_left(cluster)

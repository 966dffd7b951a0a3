"""Runs on a real Slurm: what is submitted, what the ranks see, how each end reads in exit code, sacct and status."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.errors import ExitCode
from launcher.files import read_json
from launcher.outcome import read_outcome
from launcher.paths import AttemptPaths
from launcher.records import read_ranks
from launcher.resolved import load_resolved
from launcher.slurm.code import code_digest
from launcher.slurm.parameters import sbatch_text
from launcher.submission import read_submission
from tests.launcher.runs import QUICK, ROOT, Done, only_attempt
from tests.slurm.cluster import NODES, Cluster

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

_END_S = 300.0
WORDS = (*QUICK, "cluster=slurm")


def run(cluster: Cluster, *command: str, **exported: str) -> Done:
    """A command in a shell of the cluster, to its end."""
    environment = {**cluster.environment, **exported}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_END_S
    )
    return Done(code=done.returncode, text=done.stdout)


def launch(cluster: Cluster, *words: str, **exported: str) -> Done:
    return run(cluster, sys.executable, "-m", "launcher", *words, **exported)


def wait_until(done: Callable[[], bool], *, what: str) -> None:
    deadline = time.monotonic() + _END_S
    while not done():
        assert time.monotonic() < deadline, f"no {what} within {_END_S:.0f} s"
        time.sleep(0.5)


def job_of(attempt: AttemptPaths) -> str:
    submission = read_submission(attempt)
    assert submission is not None
    return submission.job


def accounted(cluster: Cluster, attempt: AttemptPaths) -> tuple[str, str]:
    """The job's state and exit code as sacct has them, once the job has left the nodes."""
    words = ("sacct", "--noheader", "--allocations", "--parsable2", "--format=State,ExitCode", "--jobs")

    def read() -> list[str]:
        return run(cluster, *words, job_of(attempt)).text.strip().split("|")

    wait_until(lambda: read()[0] not in ("", "PENDING", "RUNNING", "COMPLETING"), what="end of the job")
    state, code = read()
    return state.split()[0], code


def status(cluster: Cluster, outputs: Path) -> dict[str, str]:
    """The row of the only run."""
    done = launch(cluster, "status", "--json", f"output_dir={outputs}")
    assert done.code == ExitCode.OK, done.text
    (row,) = json.loads(done.text)
    return row


def assert_nothing_is_left(cluster: Cluster) -> None:
    def left() -> list[int]:
        return [pid for node in NODES for pid in cluster.processes_of(node)]

    wait_until(lambda: not left(), what="empty nodes")


@pytest.fixture
def python(tmp_path: Path) -> Callable[[str], str]:
    """An interpreter that runs a line of shell before a rank, and nothing special otherwise."""

    def make(line: str) -> str:
        path = tmp_path / "python"
        path.write_text(f'#!/bin/sh\ncase "$*" in *submitit*) {line};; esac\nexec {sys.executable} "$@"\n')
        path.chmod(0o755)
        return str(path)

    return make


def test_one_node_submitted_from_inside_a_job(cluster: Cluster, tmp_path: Path) -> None:
    """The job around it has 3 tasks and a name; none of it may reach the run."""
    outputs = tmp_path / "outputs"
    inner = f"{sys.executable} -m launcher {' '.join(WORDS)} parallelism=dp2 output_dir={outputs}"
    outer = ("sbatch", "--wait", "--ntasks=3", "--job-name=outer", f"--output={tmp_path}/outer.log", "--wrap", inner)
    done = run(cluster, *outer)
    assert done.code == 0, (tmp_path / "outer.log").read_text()
    attempt = only_attempt(outputs)
    wait_until(attempt.outcome.exists, what="outcome")
    outcome = read_outcome(attempt)
    assert outcome is not None
    assert (outcome.state, outcome.exit_code) == ("finished", ExitCode.OK), outcome.error
    assert accounted(cluster, attempt) == ("COMPLETED", "0:0")
    assert [record.host for record in read_ranks(attempt)] == ["node1", "node1"]
    script = attempt.logs / f"{job_of(attempt)}_submission.sh"
    config = load_resolved(attempt.resolved)
    assert script.read_text() == sbatch_text(config, attempt=attempt, code=outputs / "cache" / "code" / code_digest())
    assert status(cluster, outputs)["state"] == "finished"
    assert_nothing_is_left(cluster)


def test_two_nodes_meet_and_the_launcher_waits_for_the_verdict(cluster: Cluster, tmp_path: Path) -> None:
    words = ("+preset=zero_kl_cpu", "cluster.nodes=2", "cluster.num_processes=4", "cluster.wait=true")
    done = launch(cluster, *words, *WORDS, f"output_dir={tmp_path}")
    assert done.code == ExitCode.OK, done.text
    assert " ZERO " in done.text
    attempt = only_attempt(tmp_path)
    assert [record.host for record in read_ranks(attempt)] == ["node1", "node1", "node2", "node2"]
    assert accounted(cluster, attempt) == ("COMPLETED", "0:0")
    logs = launch(cluster, "logs", "-f", str(attempt.root), "rank=3")
    assert logs.code == ExitCode.OK
    assert "Job completed successfully" in logs.text
    assert_nothing_is_left(cluster)


def test_a_rank_that_exits_3_and_a_secret(cluster: Cluster, tmp_path: Path, python: Callable[[str], str]) -> None:
    """Rank 1 is refused, rank 0 is ended by it; the token reaches the ranks and nothing that is written."""
    secret = "token-of-the-test-0123456789"
    line = '[ -z "$A_TOKEN" ] || echo "the token is here"; [ "$SLURM_PROCID" != 1 ] || export OMP_NUM_THREADS=7'
    outputs = tmp_path / "outputs"
    words = (f"cluster.python={python(line)}", "cluster.secrets=[A_TOKEN]", "cluster.wait=true", "parallelism=dp2")
    done = launch(cluster, *WORDS, *words, f"output_dir={outputs}", A_TOKEN=secret)
    assert done.code == ExitCode.ENVIRONMENT, done.text
    assert "rank 1 failed first" in done.text
    assert "OMP_NUM_THREADS is exported as 7" in done.text
    attempt = only_attempt(outputs)
    assert accounted(cluster, attempt) == ("FAILED", "3:0")
    row = status(cluster, outputs)
    assert (row["state"], row["exit_code"]) == ("failed", ExitCode.ENVIRONMENT)
    log = attempt.log(job_of(attempt), rank=1).read_text()
    assert "the token is here" in log
    assert str(outputs / "cache" / "code") in log  # the traceback is of the copied code
    assert secret not in done.text + run(cluster, "sacct", "--format=SubmitLine%500").text
    holders = [p for p in outputs.rglob("*") if p.is_file() and secret.encode() in p.read_bytes()]
    assert holders == []
    assert_nothing_is_left(cluster)


def test_every_rank_sees_all_gpus_of_its_node(cluster: Cluster, tmp_path: Path, python: Callable[[str], str]) -> None:
    outputs = tmp_path / "outputs"
    interpreter = python(
        'echo "rank $SLURM_PROCID of $SLURM_NTASKS on $SLURMD_NODENAME: $CUDA_VISIBLE_DEVICES"; exit 3'
    )
    words = (
        "platform=hopper",
        "job.num_prompts=16",
        "cluster.num_processes=16",
        f"cluster.python={interpreter}",
        "cluster.wait=true",
    )
    done = launch(cluster, "cluster=slurm", *words, f"output_dir={outputs}")
    assert done.code == ExitCode.EXPERIMENT, done.text
    assert "ended before it left a record: Exited with exit code 3" in done.text
    attempt = only_attempt(outputs)
    assert accounted(cluster, attempt) == ("FAILED", "5:0")
    for rank in (0, 7, 8, 15):
        expected = f"rank {rank} of 16 on node{1 + rank // 8}: 0,1,2,3,4,5,6,7"
        assert expected in attempt.log(job_of(attempt), rank=rank).read_text()
    assert_nothing_is_left(cluster)


def test_a_cancelled_job(cluster: Cluster, tmp_path: Path) -> None:
    done = launch(cluster, *WORDS, f"output_dir={tmp_path}")
    assert done.code == ExitCode.OK, done.text
    attempt = only_attempt(tmp_path)
    assert job_of(attempt) in done.text
    wait_until(lambda: bool(read_ranks(attempt)), what="rank")
    again = launch(cluster, *WORDS, f"output_dir={tmp_path}")
    assert again.code == ExitCode.SUBMISSION
    assert "the same run is running" in again.text
    assert status(cluster, tmp_path)["state"] == "RUNNING"
    assert launch(cluster, "cancel", job_of(attempt), f"output_dir={tmp_path}").code == ExitCode.OK
    assert accounted(cluster, attempt)[0] == "CANCELLED"
    assert status(cluster, tmp_path)["state"] == "cancelled"
    assert_nothing_is_left(cluster)


def test_a_job_that_somebody_else_cancels(cluster: Cluster, tmp_path: Path) -> None:
    """Its script outlives the signal and writes the outcome, or else the launcher that waits learns it from Slurm."""
    environment = dict(cluster.environment)
    command = [sys.executable, "-m", "launcher", *WORDS, "cluster.wait=true", f"output_dir={tmp_path}"]
    waiting = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    wait_until(lambda: bool(list(tmp_path.glob("*/attempt_1/ranks/rank_0.json"))), what="rank")
    attempt = only_attempt(tmp_path)
    run(cluster, "scancel", job_of(attempt))
    text, _ = waiting.communicate(timeout=_END_S)
    assert waiting.returncode == ExitCode.EXPERIMENT, text.decode()
    by_script, by_launcher = "the run was cancelled", f"Slurm ended job {job_of(attempt)}: CANCELLED"
    assert by_script in text.decode() or by_launcher in text.decode()
    assert accounted(cluster, attempt)[0] == "CANCELLED"
    assert status(cluster, tmp_path)["state"] in ("cancelled", "failed")
    assert_nothing_is_left(cluster)


@pytest.mark.parametrize(
    ("word", "said", "hint"),
    [
        ("cluster.partition=nowhere", "invalid partition", "hint: cluster.partition="),
        ("cluster.mem=900000G", "node configuration is not available", "hint: cluster.gpus_per_node"),
        ("+cluster.sbatch.no_such_option=1", "unrecognized option", "hint: ~cluster.sbatch."),
    ],
)
def test_sbatch_refuses(word: str, said: str, hint: str, cluster: Cluster, tmp_path: Path) -> None:
    done = launch(cluster, *WORDS, word, f"output_dir={tmp_path}")
    assert done.code == ExitCode.SUBMISSION, done.text
    assert said in done.text
    assert hint in done.text
    attempt = only_attempt(tmp_path)
    assert read_json(attempt.outcome)["state"] == "refused"
    assert status(cluster, tmp_path)["state"] == "refused"

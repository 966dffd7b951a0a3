"""Sweeps on a real Slurm whose launcher dies right after an sbatch: the same words find its arrays and add the rest."""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from launcher.errors import ExitCode
from launcher.outcome import read_outcome
from launcher.paths import AttemptPaths, Outputs, SweepPaths
from launcher.records import read_ranks
from launcher.submission import read_submission
from launcher.sweep.results import read_results
from tests.slurm.cluster import Cluster
from tests.slurm.test_jobs import WORDS, accounted, assert_nothing_is_left, job_of, launch, run, wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


def script(path: Path, *, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def newest_attempts(outputs: Path) -> list[AttemptPaths]:
    return [run.attempts()[-1] for run in Outputs(outputs).runs()]


def jobs_of_sweep(cluster: Cluster, outputs: Path) -> list[str]:
    """All jobs that Slurm ever had of the only sweep: an array's name begins with the sweep's hash."""
    (sweep,) = (outputs / "sweeps").iterdir()
    words = ("sacct", "--noheader", "--allocations", "--parsable2", "--format=JobID,JobName")
    known = (line.split("|") for line in run(cluster, *words).text.splitlines())
    return sorted(job for job, name in known if name.startswith(sweep.name))


def test_a_killed_launcher_and_points_that_fail(cluster: Cluster, tmp_path: Path) -> None:
    """Two of four points are valid, and their ranks are refused by an exported variable before they import torch.

    A token reaches each rank and nothing that is written, the plan of the sweep included.
    """
    outputs, secret = tmp_path / "outputs", "token-of-the-sweep-0123456789"
    check = '[ -z "$A_TOKEN" ] || echo "the token is here"'
    python = script(tmp_path / "python", text=f'{check}\nexport OMP_NUM_THREADS=7\nexec {sys.executable} "$@"')
    deadly = script(tmp_path / "bin" / "sbatch", text=f'{shutil.which("sbatch")} "$@"\nkill -9 $PPID')
    words = (
        "-m",
        *WORDS,
        "parallelism=single,ep2",
        "job.seed=1,2",
        f"cluster.python={python}",
        "cluster.secrets=[A_TOKEN]",
        f"output_dir={outputs}",
    )

    path = f"{deadly.parent}:{os.environ['PATH']}"
    killed = launch(cluster, *words, "+cluster.sbatch.hold=true", PATH=path, A_TOKEN=secret)
    assert killed.code == -9, killed.text
    assert [read_submission(a) for a in newest_attempts(outputs)] == [None, None]

    found = launch(cluster, *words, A_TOKEN=secret)
    assert found.code == ExitCode.OK, found.text
    assert "4 expected = 0 submitted + 2 pruned + 0 duplicate + 0 finished + 2 running" in found.text
    attempts = newest_attempts(outputs)
    assert [a.number for a in attempts] == [1, 1]
    array = job_of(attempts[0]).partition("_")[0]
    assert sorted(map(job_of, attempts)) == [f"{array}_0", f"{array}_1"]

    run(cluster, "scontrol", "release", array)
    wait_until(lambda: all(a.outcome.exists() for a in attempts), what="outcomes")
    for attempt in attempts:
        outcome = read_outcome(attempt)
        assert outcome is not None
        assert (outcome.state, outcome.exit_code) == ("failed", ExitCode.ENVIRONMENT), outcome.error
        assert accounted(cluster, attempt) == ("FAILED", "3:0")
        assert len(read_ranks(attempt)) == 1
        log = launch(cluster, "logs", str(attempt.root))
        assert "OMP_NUM_THREADS is exported as 7" in log.text
        assert "the token is here" in log.text

    again = launch(cluster, *words, "cluster.wait=true", A_TOKEN=secret)
    assert again.code == ExitCode.ENVIRONMENT, again.text
    assert "4 expected = 2 submitted + 2 pruned + 0 duplicate + 0 finished + 0 running" in again.text
    assert [a.number for a in newest_attempts(outputs)] == [2, 2]
    assert len(jobs_of_sweep(cluster, outputs)) == 4
    plan = launch(cluster, "plan", *words, A_TOKEN=secret)
    lines = run(cluster, "sacct", "--format=SubmitLine%500").text
    assert secret not in killed.text + found.text + again.text + plan.text + lines
    assert [p for p in outputs.rglob("*") if p.is_file() and secret.encode() in p.read_bytes()] == []
    assert_nothing_is_left(cluster)


LAYOUTS = ((1, 1), (1, 2), (2, 1), (2, 2), (4, 1), (4, 2), (3, 1), (1, 3), (2, 3), (3, 2), (3, 3), (1, 1))
"""TP and PP of 12 points: the tiny model has 4 heads and 4 layers, so a 3 cannot be; 4 x 2 is more than 4 GPUs."""


def busiest(cluster: Cluster, attempts: Mapping[AttemptPaths, int]) -> int:
    """The most GPUs that the attempts held at one time, from the begin and the end that sacct has for their jobs."""
    words = ("sacct", "--noheader", "--allocations", "--parsable2", "--format=Start,End", "--jobs")
    spans = [(*run(cluster, *words, job_of(a)).text.strip().split("|"), gpus) for a, gpus in attempts.items()]
    return max(sum(gpus for begin, end, gpus in spans if begin <= now < end) for now, _, _ in spans)


def test_12_layouts_whose_launcher_dies_between_its_arrays(cluster: Cluster, tmp_path: Path) -> None:
    """Three arrays by number of GPUs, 4 at once. The first is recorded, the second is known to Slurm alone, the third
    was not submitted."""
    outputs = tmp_path / "outputs"
    python = script(
        tmp_path / "python", text=f'case "$*" in *submitit*) sleep 2; exit 3;; esac\nexec {sys.executable} "$@"'
    )
    counted = f"echo >> {tmp_path}/calls\n[ $(wc -l < {tmp_path}/calls) != 2 ] || kill -9 $PPID"
    deadly = script(tmp_path / "bin" / "sbatch", text=f'{shutil.which("sbatch")} "$@"\n{counted}')
    keys = ("parallelism.tensor_model_parallel_size", "parallelism.pipeline_model_parallel_size")
    points = ",".join(f"{{{keys[0]}:{tp},{keys[1]}:{pp}}}" for tp, pp in LAYOUTS)
    words = ("-m", "cluster=slurm", "platform=hopper", "cluster.max_gpus=4", f"sweep.points=[{points}]")
    words = (*words, f"cluster.python={python}", f"output_dir={outputs}")

    killed = launch(cluster, *words, "+cluster.sbatch.hold=true", PATH=f"{deadly.parent}:{os.environ['PATH']}")
    assert killed.code == -9, killed.text
    assert [read_submission(a) is not None for a in newest_attempts(outputs)] == [True, False, False]
    for submitted, running in ((2, 3), (0, 5)):
        again = launch(cluster, *words)
        assert again.code == ExitCode.OK, again.text
        counts = f"{submitted} submitted + 6 pruned + 1 duplicate + 0 finished + {running} running"
        assert f"12 expected = {counts}" in again.text
    attempts = newest_attempts(outputs)
    assert [a.number for a in attempts] == [1] * 5
    jobs = [job_of(a) for a in attempts]
    for job in jobs[:2]:
        run(cluster, "scontrol", "release", job.partition("_")[0])

    (folder,) = (outputs / "sweeps").iterdir()
    wait_until((folder / "report.html").exists, what="page of the sweep")
    assert jobs_of_sweep(cluster, outputs) == sorted(jobs)
    for attempt in attempts:
        assert accounted(cluster, attempt) == ("FAILED", "5:0")
    results = {r.attempt: r.point.num_gpus for r in read_results(SweepPaths(folder)) if r.attempt is not None}
    assert sorted(results.values()) == [1, 2, 2, 4, 4]
    assert busiest(cluster, results) == 4
    report = launch(cluster, "report", str(folder))
    assert report.code == ExitCode.EXPERIMENT
    assert "12: asks what 1 asks" in report.text
    assert "5 failed, 6 pruned, 1 duplicate" in (folder / "report.html").read_text()
    assert_nothing_is_left(cluster)


def test_200_runs_are_queued_as_an_array_in_10_s_of_a_processor(cluster: Cluster, tmp_path: Path) -> None:
    """Of a processor and not of a clock: other tests run beside this one."""
    before = os.times()
    done = launch(cluster, "-m", *WORDS, "job.seed=range(0,200)", "+cluster.sbatch.hold=true", f"output_dir={tmp_path}")
    after = os.times()
    assert done.code == ExitCode.OK, done.text
    jobs = {job_of(attempt) for attempt in newest_attempts(tmp_path)}
    assert len(jobs) == 200
    run(cluster, "scancel", jobs.pop().partition("_")[0])
    took = after.children_user + after.children_system - before.children_user - before.children_system
    assert took < 10

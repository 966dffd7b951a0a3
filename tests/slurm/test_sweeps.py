"""A sweep on a real Slurm whose launcher dies right after sbatch: the same words find its array and add nothing."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from launcher.errors import ExitCode
from launcher.outcome import read_outcome
from launcher.paths import AttemptPaths, Outputs
from launcher.records import read_ranks
from launcher.submission import read_submission
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


def test_a_killed_launcher_and_points_that_fail(cluster: Cluster, tmp_path: Path) -> None:
    """Two of four points are valid, and their ranks are refused by an exported variable before they import torch."""
    outputs = tmp_path / "outputs"
    python = script(tmp_path / "python", text=f'export OMP_NUM_THREADS=7\nexec {sys.executable} "$@"')
    deadly = script(tmp_path / "bin" / "sbatch", text=f'{shutil.which("sbatch")} "$@"\nkill -9 $PPID')
    words = (
        "-m",
        *WORDS,
        "parallelism=single,ep2",
        "job.seed=1,2",
        f"cluster.python={python}",
        f"output_dir={outputs}",
    )

    killed = launch(cluster, *words, "+cluster.sbatch.hold=true", PATH=f"{deadly.parent}:{os.environ['PATH']}")
    assert killed.code == -9, killed.text
    assert [read_submission(a) for a in newest_attempts(outputs)] == [None, None]

    found = launch(cluster, *words)
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

    again = launch(cluster, *words, "cluster.wait=true")
    assert again.code == ExitCode.ENVIRONMENT, again.text
    assert "4 expected = 2 submitted + 2 pruned + 0 duplicate + 0 finished + 0 running" in again.text
    assert [a.number for a in newest_attempts(outputs)] == [2, 2]
    jobs = run(cluster, "sacct", "--noheader", "--allocations", "--format=JobID").text.split()
    assert len([job for job in jobs if "_" in job]) == 4
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

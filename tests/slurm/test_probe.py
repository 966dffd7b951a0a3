"""A probe of a real Slurm, and a run that is submitted with the profile it wrote, each rank bound to a core."""

import re
import shutil
import sys
from pathlib import Path

import pytest

from launcher.errors import ExitCode
from tests.launcher.runs import QUICK, ROOT, Done, only_attempt
from tests.slurm.cluster import Cluster
from tests.slurm.test_jobs import accounted, assert_nothing_is_left, job_of, run

pytestmark = pytest.mark.slurm


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy that a profile may be written into."""
    folder = tmp_path / "checkout"
    for name in ("conf", "launcher", "megatron_setup", "zero_kl"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def test_the_profile_of_a_probe_is_used(cluster: Cluster, checkout: Path, tmp_path: Path) -> None:
    def launch(*words: str) -> Done:
        command = ("env", f"--chdir={checkout}", sys.executable, "-m", "launcher", *words)
        return run(cluster, *command)

    probed = launch("probe")
    assert probed.code == ExitCode.OK, probed.text
    assert "not answered" not in probed.text
    assert "gpu:h100:8" in probed.text
    profile = checkout / "conf" / "cluster" / "pretend.yaml"
    assert f"written: {profile}" in probed.text
    again = launch("probe", "pretend")
    assert again.code == ExitCode.CONFIG
    assert "hint: force=true" in again.text

    words = ("cluster=pretend", *QUICK, "parallelism=dp2", "cluster.cpus_per_task=1", "cluster.cpu_bind=cores")
    planned = launch("plan", *words)
    assert planned.code == ExitCode.OK, planned.text
    assert "--distribution=block:block --cpu-bind=cores --mem-bind=local" in planned.text
    outputs, python = tmp_path / "outputs", tmp_path / "python"
    shown = 'echo "$SLURM_CPU_BIND $SLURM_MEM_BIND $SLURM_JOB_ACCOUNT"'
    python.write_text(f'#!/bin/sh\ncase "$*" in *submitit*) {shown}; exit 3;; esac\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    done = launch(*words, "cluster.wait=true", f"cluster.python={python}", f"output_dir={outputs}")
    assert done.code == ExitCode.EXPERIMENT, done.text
    attempt = only_attempt(outputs)
    assert accounted(cluster, attempt) == ("FAILED", "5:0")
    log = attempt.log(job_of(attempt), rank=0).read_text()
    bound = re.search(r"^quiet,mask_cpu:(0x\w+),(0x\w+) quiet,local root$", log, re.MULTILINE)
    assert bound, log
    assert bound.group(1) != bound.group(2)
    assert_nothing_is_left(cluster)

"""The environment that sbatch sees, and a machine without Slurm."""

import os
from pathlib import Path

import pytest

from launcher.compose import compose
from launcher.errors import SubmissionError
from launcher.paths import RunPaths
from launcher.slurm.submission import _refusal, outside_of_any_job, submit_slurm

INHERITED = {
    "SLURM_JOB_ID": "1",
    "SLURM_NTASKS": "3",
    "SBATCH_PARTITION": "other",
    "SRUN_DEBUG": "3",
    "SUBMITIT_EXECUTOR": "slurm",
    "RANK": "1",
}


def test_a_job_around_us_is_not_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**INHERITED, "SLURM_CONF": "/etc/slurm.conf", "HF_TOKEN": "x"}.items():
        monkeypatch.setenv(name, value)
    with outside_of_any_job():
        assert not set(INHERITED) & set(os.environ)
        assert os.environ["SLURM_CONF"] == "/etc/slurm.conf"
        assert os.environ["HF_TOKEN"] == "x"
    assert INHERITED.items() <= os.environ.items()


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("sbatch: error: Invalid --mem specification", "cluster.mem"),
        ("sbatch: error: Memory required by task is not available", "cluster.mem"),
        ("sbatch: error: Batch job submission failed: Invalid node name specified", "cluster.exclude"),
        ("sbatch: error: Invalid --mail-type specification", "cluster.mail_type"),
        ("sbatch: error: invalid partition specified: x", "cluster.partition"),
    ],
)
def test_a_refusal_names_the_key_that_it_is_about(words: str, key: str) -> None:
    text = _refusal(words)
    assert words.removeprefix("sbatch: ") in text
    assert f"\nhint: {key}" in text


def test_without_slurm_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    paths = RunPaths(tmp_path).new_attempt()
    with pytest.raises(SubmissionError, match="cluster=local"):
        submit_slurm(paths, config=compose(["cluster=slurm"]).config, code=tmp_path)

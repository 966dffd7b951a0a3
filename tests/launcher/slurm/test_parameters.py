"""What sbatch and srun are asked for beyond what the plans' golden texts show."""

import pickletools
import shlex
from pathlib import Path

import pytest
from submitit.core.utils import DelayedSubmission

from launcher.compose import compose
from launcher.paths import AttemptPaths
from launcher.slurm.parameters import parameters, sbatch_text
from launcher.worker import run_rank

ATTEMPT = AttemptPaths(Path("/shared/out puts/run/attempt_1"))
CODE = Path("/shared/out puts/code")


def test_paths_with_spaces_are_quoted() -> None:
    lines = sbatch_text(compose(["cluster=slurm"]).config, attempt=ATTEMPT, code=CODE).splitlines()
    srun = next(line for line in lines if line.startswith("srun"))
    assert shlex.split(srun)[-1] == "/shared/out puts/run/attempt_1/logs"
    assert shlex.split(lines[-1])[-2:] == ["/shared/out puts/run/attempt_1", "$?"]


@pytest.mark.parametrize(("name", "value"), [("mem_per_gpu", "20G"), ("nodelist", "node7"), ("wckey", "key")])
def test_an_option_that_submitit_knows_is_its_parameter(name: str, value: str) -> None:
    words = ["cluster=slurm", f"+cluster.sbatch.{name}={value}"]
    asked = parameters(compose(words).config, attempt=ATTEMPT, code=CODE)
    assert asked[name] == value
    assert name not in asked["additional_parameters"]


def test_the_folders_of_the_run_are_mounted(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    words = ("cluster=slurm_pyxis", "cluster.container_image=image", "output_dir=/shared/outputs", f"model={tmp_path}")
    asked = parameters(compose((*words, "job.prompts=/data/p.jsonl")).config, attempt=ATTEMPT, code=CODE)
    mounts = f"/shared/outputs:/shared/outputs,{tmp_path}:{tmp_path},/data:/data"
    assert f"--container-mounts={mounts}" in asked["srun_args"]


def test_the_pickle_names_the_worker_and_holds_no_code(tmp_path: Path) -> None:
    """A function pickled by value needs the same minor version of Python on both sides; a container has its own."""
    DelayedSubmission(run_rank, "/shared/outputs/run/attempt_1").dump(tmp_path / "job.pkl")
    texts = [arg for _, arg, _ in pickletools.genops((tmp_path / "job.pkl").read_bytes()) if isinstance(arg, str)]
    assert {"launcher.worker", "run_rank"} <= set(texts)
    assert not [text for text in texts if "_make_function" in text or "CodeType" in text]

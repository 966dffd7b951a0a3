"""What sbatch and srun are asked for beyond what the plans' golden texts show."""

import pickletools
import shlex
import subprocess
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
    begin, finish = (next(line for line in lines if f"launcher.slurm.{name}" in line) for name in ("begin", "finish"))
    assert shlex.split(finish)[-2:] == ["/shared/out puts/run/attempt_1", "$?"]
    assert shlex.split(begin)[-3:] == ["/shared/out puts/run/attempt_1", "||", "exit"]


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


def test_a_job_without_a_budget_is_not_requeued() -> None:
    words = ["cluster=slurm", *(f"cluster.restarts.{cause}=0" for cause in ("timeout", "preempted", "node_failure"))]
    for restarts, option in ((words[1:], "no_requeue"), (words[2:], "requeue")):
        asked = parameters(compose(["cluster=slurm", *restarts]).config, attempt=ATTEMPT, code=CODE)
        assert asked["additional_parameters"][option] is True


@pytest.mark.parametrize(
    ("variables", "code", "asked"),
    [
        ({"SLURM_JOB_ID": "7"}, 6, "requeue 7"),
        ({"SLURM_JOB_ID": "7", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}, 6, "requeue 7_3"),
        ({"SLURM_JOB_ID": "7"}, 5, ""),
        ({"SLURM_JOB_ID": "7"}, 0, ""),
    ],
)
def test_the_shell_requeues(variables: dict[str, str], code: int, asked: str, tmp_path: Path) -> None:
    """The end of the script by itself; the exit code is what Slurm shows of a job that is over."""
    for name, text in (("python", f"exit {code}"), ("scontrol", f'echo "$@" > {tmp_path}/asked')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    config = compose(["cluster=slurm", f"cluster.python={tmp_path}/python"]).config
    text = sbatch_text(config, attempt=ATTEMPT, code=CODE).partition("# teardown\n")[2]
    done = subprocess.run(["bash", "-c", text], env={"PATH": f"{tmp_path}:/bin:/usr/bin", **variables}, check=False)
    assert done.returncode == (0 if asked else code)
    assert ((tmp_path / "asked").read_text().strip() if asked else "") == asked
    assert (tmp_path / "asked").exists() == bool(asked)

"""The plan of the presets and of every cluster profile, as text; a changed plan is accepted with `pytest --accept`."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.compose import compose
from launcher.plan import Plan, make_plan, render_plan
from launcher.slurm.code import code_digest
from launcher.validate import validate
from tests.plugin_golden import Golden

ROOT = Path(__file__).resolve().parents[2]
FIXED = ("output_dir=/shared/outputs", "cluster.python=/shared/venv/bin/python")
"""What would otherwise be this machine's."""

CASES = {
    "zero_kl": ("+preset=zero_kl", *FIXED),
    "zero_kl_hopper_ep8": ("+preset=zero_kl_hopper", "model=qwen3_moe_1b", "parallelism.expert_model_parallel_size=8"),
    "two_nodes": ("+preset=zero_kl", *FIXED, "parallelism.data_parallel_size=16", "cluster.timeout_min=30"),
    "zero_kl_cpu": ("+preset=zero_kl_cpu",),
}

EXPERTS = ("model=qwen3_moe_1b", "parallelism.expert_model_parallel_size=16", "cluster.num_processes=64")
EVERYTHING = (
    *("cluster.account=team", "cluster.partition=gpu", "cluster.qos=normal", "cluster.reservation=night"),
    *("cluster.nodes=2", "cluster.num_processes=8", "cluster.cpus_per_task=12", "cluster.mem=200G"),
    *("cluster.constraint=h200", "cluster.exclude=node7", "cluster.exclusive=true", "cluster.signal_delay_s=300"),
    *("cluster.mail_type=END", "cluster.mail_user=me", "cluster.setup=[module load cuda]", "cluster.wait=true"),
    *("cluster.srun_args=['--cpu-bind=verbose']", "+cluster.sbatch={nodelist:'node[1-2]',licenses:a,hold:true}"),
)
PROFILES = {
    "local": ("cluster=local", "output_dir=/shared/outputs"),
    "slurm": ("platform=hopper", "cluster=slurm", *FIXED),
    "slurm_everything": ("platform=hopper", "cluster=slurm", *FIXED, *EVERYTHING),
    "slurm_pyxis": (
        *("platform=hopper", "cluster=slurm_pyxis", "output_dir=/shared/outputs", "cluster.secrets=[HF_TOKEN]"),
        *("cluster.container_image=/shared/megatron.sqsh", "cluster.container_mounts=[/data:/data]"),
        *("cluster.container_workdir=/work", "cluster.container_env=[HF_HOME]"),
    ),
    "slurm_bound": (
        *("platform=hopper", "cluster=slurm", *FIXED, "cluster.num_processes=8"),
        *("cluster.cpus_per_task=12", "cluster.cpu_bind=ldoms"),
    ),
    "gb200_nvl72": ("platform=blackwell", "cluster=gb200_nvl72", *FIXED, *EXPERTS, "job.num_prompts=64"),
    "gb200_nvl72_awkward": (
        *("platform=blackwell", "cluster=gb200_nvl72", *FIXED, "job.num_prompts=148", "cluster.num_processes=148"),
    ),
}


def planned(words: Sequence[str]) -> Plan:
    config = compose(words).config
    validation = validate(config)
    validation.raise_if_invalid()
    return replace(make_plan(config, validation=validation), rules_checked=0)


@pytest.mark.parametrize("name", CASES)
def test_plan(name: str, golden: Golden) -> None:
    golden(render_plan(planned(CASES[name]), overrides=CASES[name]), name=f"plan/{name}.txt")


@pytest.mark.parametrize("name", PROFILES)
def test_profile(name: str, golden: Golden) -> None:
    plan = planned(PROFILES[name])
    text = "\n\n".join((*plan.warnings, render_plan(plan, overrides=PROFILES[name]), plan.sbatch)).rstrip()
    golden(text.replace(code_digest(), "CODE"), name=f"plan/profile_{name}.txt")


def test_every_profile_has_a_golden() -> None:
    there = {path.stem for path in (ROOT / "conf" / "cluster").glob("*.yaml")}
    assert there <= set(PROFILES)


def test_a_plan_needs_no_slurm() -> None:
    words = [sys.executable, "-m", "launcher", "plan", "+preset=zero_kl"]
    done = subprocess.run(words, cwd=ROOT, env={"PATH": "/nowhere"}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "#SBATCH --gpus-per-node=1" in done.stdout

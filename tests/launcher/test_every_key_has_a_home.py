"""No key is accepted and ignored: each changes what upstream is handed, or is read by a module, or is refused when set.

What a key changes is found out by changing it: the real functions are called with and without. A key that no function
hands on must be in READ_BY, whose module must read an attribute of that name.
"""

import ast
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from launcher.compose import compose
from launcher.environment import environment
from launcher.keys import keys_of
from launcher.pending import REQUIREMENTS as PENDING
from launcher.requirement import Subject, check_all
from launcher.schema import Architecture, RunConfig
from launcher.schema.layout import derive_layout
from launcher.validate import read_architecture
from megatron_setup import second_model, tables
from megatron_setup.checkpoint import checkpoint_fields
from megatron_setup.optimizer import ddp_fields, optimizer_fields
from megatron_setup.peft import lora_fields
from megatron_setup.performance import rng_fields
from megatron_setup.scheduler import scheduler_fields
from tests.other_values import with_another_value
from zero_kl.inference import graph_fields, inference_fields, sampling_fields

ROOT = Path(__file__).resolve().parents[2]

Sink = Callable[[RunConfig], Mapping[str, Any]]

SINKS: dict[str, Sink] = {
    "the provider": lambda c: tables.provider_fields(c, has_experts=True),
    "OptimizerConfig": optimizer_fields,
    "DistributedDataParallelConfig": ddp_fields,
    "SchedulerConfig": scheduler_fields,
    "CheckpointConfig": checkpoint_fields,
    "the second model's provider": second_model.inference_fields,
    "LoRA": lora_fields,
    "InferenceConfig": inference_fields,
    "SamplingParams": lambda c: sampling_fields(c.generation),
    "the engine's graphs": lambda c: graph_fields(c.generation),
    "the random state": rng_fields,
    "the environment": environment,
    "the layout": lambda c: vars(derive_layout(c)),
    "the model's shape": lambda c: _shape(read_architecture(c.model)),
}
"""What hands keys on."""

SHAPE_KEYS = ("nodes", "exclusive", "nodes_per_nvlink_domain", "segment")
SBATCH_KEYS = (
    *(
        "account",
        "partition",
        "qos",
        "reservation",
        "cpus_per_task",
        "cpu_bind",
        "mem",
        "constraint",
        "exclude",
        "signal_delay_s",
    ),
    *("mail_type", "mail_user", "setup", "python", "srun_args", "sbatch"),
    *("container_image", "container_mounts", "container_workdir", "container_env"),
)

PROMPT_KEYS = ("num_prompts", "min_prompt_tokens", "max_prompt_tokens", "prompts")

READ_BY: dict[str, str] = {
    "model.name": "launcher/identity.py",
    "model.hf_path": "megatron_setup/hf_folder.py",
    "model.init_seed": "megatron_setup/hf_folder.py",
    "model.hf_config_overrides": "launcher/hf_config.py",
    "model.pretrained_checkpoint.format": "megatron_setup/model_source.py",
    "model.pretrained_checkpoint.path": "megatron_setup/model_source.py",
    "model.model_overrides": "megatron_setup/build.py",
    "model.force_reconvert_from_hf": "megatron_setup/model_import.py",
    "model.peft.enabled": "megatron_setup/lora.py",
    "model.reference_model": "megatron_setup/apply.py",
    "model.value.enabled": "megatron_setup/apply.py",
    **{f"model.value.{name}": "megatron_setup/value.py" for name in ("hf_path", "lr", "micro_batch_size")},
    "model.draft.enabled": "megatron_setup/draft.py",
    "model.draft.hf_path": "megatron_setup/draft_model.py",
    "model.draft.num_layers": "megatron_setup/draft_weights.py",
    "model.draft.aux_layer_indices": "megatron_setup/draft.py",
    "model.draft.loss_weight": "launcher/jobs/train.py",
    "moe.freeze_moe_router": "megatron_setup/build.py",
    "performance.micro_batch_size": "launcher/jobs/mismatch.py",
    "performance.make_sequence_length_divisible_by": "zero_kl/batches.py",
    "performance.global_batch_size": "megatron_setup/optimizer.py",
    "checkpoint.save": "megatron_setup/megatron_config.py",
    "checkpoint.most_recent_k": "megatron_setup/apply.py",
    "checkpoint.load": "megatron_setup/saves.py",
    "generation.refit_method": "megatron_setup/second_model.py",
    "zero_kl.batch_invariant_collective": "zero_kl/kernels/__init__.py",
    "generation.mamba_inference_ssm_states_dtype": "zero_kl/engine.py",
    "cluster.kind": "launcher/gates.py",
    "cluster.gpus_per_node": "launcher/slurm/shape.py",
    "cluster.timeout_min": "launcher/plan.py",
    "cluster.wait": "launcher/run.py",
    "cluster.max_gpu_hours": "launcher/slurm/findings.py",
    "cluster.max_gpus": "launcher/sweep/groups.py",
    "cluster.max_array_size": "launcher/sweep/groups.py",
    "cluster.max_timeout_min": "launcher/slurm/findings.py",
    "cluster.min_free_gpu_memory_gb": "launcher/preflight.py",
    "cluster.peer_access": "launcher/preflight.py",
    "cluster.exclude_refused_nodes": "launcher/slurm/refused.py",
    "cluster.secrets": "launcher/secrets.py",
    **{f"cluster.{name}": "launcher/slurm/shape.py" for name in SHAPE_KEYS},
    **{f"cluster.{name}": "launcher/slurm/parameters.py" for name in SBATCH_KEYS},
    **{f"cluster.restarts.{cause}": "launcher/slurm/lives.py" for cause in ("timeout", "preempted", "node_failure")},
    "job.kind": "launcher/jobs/__init__.py",
    "job.name": "launcher/identity.py",
    "job.num_steps": "launcher/jobs/mismatch.py",
    **{f"job.{name}": "launcher/jobs/sampling.py" for name in PROMPT_KEYS},
    "job.reference_kl_weight": "launcher/jobs/train.py",
    "job.claims": "launcher/jobs/mismatch.py",
    "output_dir": "megatron_setup/model_source.py",
    "force": "launcher/run.py",
}
"""Keys that are used where they are needed and handed to nobody."""

REFUSED: dict[str, str] = {
    "generation.transformer_impl": "GE044",
    "model.peft.lora_dtype": "LO011",
    "moe.moe_enable_deepep": "MO004",
    "optimizer.use_torch_optimizer_for_cpu_offload": "OP045",
}
"""Keys that upstream itself ignores or rewrites, by the row that refuses them."""

ONE_VALUE = {"generation.backend"}
"""Choices with one member: there is nothing to ignore."""

FLASH = ["performance.attention_backend=flash", "performance.flash_attention_version=4"]
BASE = compose(["platform=hopper", "model=tiny_moe", *FLASH]).config
"""A GPU's configuration of a model with experts, where every field counts; zero-KL wants FlashAttention beside it."""


def _shape(architecture: Architecture | None) -> Mapping[str, Any]:
    return {} if architecture is None else vars(architecture)


@cache
def sinks_of(key: str) -> tuple[str, ...]:
    changed = with_another_value(BASE, key=key)
    return tuple(name for name, sink in SINKS.items() if sink(changed) != sink(BASE))


def refusals_of(key: str) -> set[str]:
    """The codes of the rows about the key itself that a changed value meets."""
    subject = Subject(config=with_another_value(BASE, key=key), architecture=read_architecture(BASE.model))
    rows = [row for row in (*tables.REQUIREMENTS, *PENDING) if row.key == key]
    return {violation.row.code for violation in check_all(rows, subject=subject)}


def is_pending(key: str) -> bool:
    return any(code.startswith("PD") for code in refusals_of(key))


@cache
def attributes_read(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text())
    return frozenset(node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute))


@pytest.mark.parametrize("key", keys_of())
def test_key_has_a_home(key: str) -> None:
    homes = [bool(sinks_of(key)), key in READ_BY, key in REFUSED, key in ONE_VALUE, is_pending(key)]
    assert any(homes), f"{key} is accepted and ignored"


@pytest.mark.parametrize("key", READ_BY)
def test_module_reads_the_key(key: str) -> None:
    assert key.rpartition(".")[2] in attributes_read(READ_BY[key])


@pytest.mark.parametrize("key", READ_BY)
def test_what_is_handed_on_needs_no_mention(key: str) -> None:
    assert not is_pending(key)
    assert sinks_of(key) == ()


@pytest.mark.parametrize("key", REFUSED)
def test_what_upstream_ignores_is_refused(key: str) -> None:
    assert REFUSED[key] in refusals_of(key)
    assert not sinks_of(key)


@pytest.mark.parametrize("key", sorted(ONE_VALUE))
def test_there_is_one_value(key: str) -> None:
    assert len(keys_of()[key].choices) == 1


def test_pending_keys_are_handed_to_nobody() -> None:
    """A row of launcher.pending goes away when its duty is built."""
    built = {key: sinks_of(key) for key in keys_of() if is_pending(key) and sinks_of(key)}
    assert built == {"generation.colocated": ("the environment",)}


def test_the_sinks_take_every_kind_of_key() -> None:
    examples = {
        "parallelism.tensor_model_parallel_size": (
            "the provider",
            "the second model's provider",
            "the environment",
            "the layout",
        ),
        "optimizer.overlap_param_gather": ("OptimizerConfig", "DistributedDataParallelConfig"),
        "precision.fp8_param": ("the provider", "DistributedDataParallelConfig"),
        "generation.top_p": ("SamplingParams",),
        "generation.num_cuda_graphs": ("InferenceConfig",),
        "moe.use_mnnvl": ("the environment",),
        "performance.use_te_rng_tracker": ("the provider", "the random state"),
        "job.seed": ("the provider",),
        "cluster.ranks_per_gpu": ("the environment",),
    }
    assert {key: sinks_of(key) for key in examples} == examples

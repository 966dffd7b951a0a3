"""Parallel layouts: the rules with what to type instead, the provider's fields, the environment.

Owns the face that `launcher.rules`, `launcher.environment` and the model build see; the rules themselves are in
`megatron_setup.layout`. Torch-free.
"""

from typing import Any

from launcher.requirement import Requirement
from launcher.schema import PlatformKind, RunConfig
from launcher.schema.layout import derive_expert_tensor_parallel_size
from megatron_setup.layout import ranks, schedule
from megatron_setup.layout.nearest import with_layout_hints

ROWS: tuple[Requirement, ...] = (*ranks.ROWS, *schedule.ROWS)
"""The rules without hints: quick, for sweeps that only ask whether a layout fits."""

REQUIREMENTS: tuple[Requirement, ...] = with_layout_hints(ROWS)


def provider_fields(config: RunConfig) -> dict[str, Any]:
    """The provider's fields of the layout, upstream's names.

    ETP is always set: where it is null, Megatron-Bridge (in `finalize`) and megatron-core (in `__post_init__`) fill in
    different numbers, and the process groups must be made of the same one.
    """
    parallelism = config.parallelism
    optional = {
        "virtual_pipeline_model_parallel_size": parallelism.virtual_pipeline_model_parallel_size,
        "num_layers_in_first_pipeline_stage": parallelism.num_layers_in_first_pipeline_stage,
        "num_layers_in_last_pipeline_stage": parallelism.num_layers_in_last_pipeline_stage,
        "pipeline_model_parallel_layout": parallelism.pipeline_model_parallel_layout,
        "microbatch_group_size_per_vp_stage": parallelism.microbatch_group_size_per_vp_stage,
        "overlap_p2p_comm": parallelism.overlap_p2p_comm,
        "batch_p2p_comm": parallelism.batch_p2p_comm,
    }
    return {
        "tensor_model_parallel_size": parallelism.tensor_model_parallel_size,
        "pipeline_model_parallel_size": parallelism.pipeline_model_parallel_size,
        "context_parallel_size": parallelism.context_parallel_size,
        "expert_model_parallel_size": parallelism.expert_model_parallel_size,
        "expert_tensor_parallel_size": derive_expert_tensor_parallel_size(parallelism),
        "sequence_parallel": parallelism.sequence_parallel,
        "account_for_embedding_in_pipeline_split": parallelism.account_for_embedding_in_pipeline_split,
        "account_for_loss_in_pipeline_split": parallelism.account_for_loss_in_pipeline_split,
        **{name: value for name, value in optional.items() if value is not None},
    }


def environment(config: RunConfig) -> dict[str, str]:
    """CUDA_DEVICE_MAX_CONNECTIONS=1 where TP or CP orders its kernels by it: before Blackwell only.

    megatron-core 0.19.2 `training/arguments.py` asserts it there, and leaves it open beside
    `overlap_moe_expert_parallel_comm`, which wants a large number.
    """
    parallelism = config.parallelism
    ordered = parallelism.tensor_model_parallel_size > 1 or parallelism.context_parallel_size > 1
    if config.platform.kind is not PlatformKind.hopper or config.moe.overlap_moe_expert_parallel_comm or not ordered:
        return {}
    return {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}

"""Generation on a model of its own: its layout, when it is needed, its provider fields, what carries the weights.

Owns no rule; those are in `megatron_setup.second_model_rules`. The model itself is built by `inference_model`.
Torch-free.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from launcher.schema import ParallelismConfig, PlatformKind, RunConfig
from launcher.schema.generation import RefitMethod
from launcher.schema.layout import derive_expert_tensor_parallel_size
from megatron_setup import parallelism

SIZES: Mapping[str, str] = {
    f"generation.{name}": f"parallelism.{name}"
    for name in (
        "tensor_model_parallel_size",
        "pipeline_model_parallel_size",
        "expert_model_parallel_size",
        "expert_tensor_parallel_size",
    )
}
"""Generation's sizes, each with training's that null means."""

_EVEN: Mapping[str, Any] = {
    "num_layers_in_first_pipeline_stage": None,
    "num_layers_in_last_pipeline_stage": None,
    "account_for_embedding_in_pipeline_split": False,
    "account_for_loss_in_pipeline_split": False,
    "pipeline_model_parallel_layout": None,
}
"""A pipeline whose stages have the same number of layers each."""

_NO_TRAINING: Mapping[str, Any] = {
    "recompute_granularity": None,
    "recompute_method": None,
    "recompute_num_layers": None,
    "fine_grained_activation_offloading": False,
    "perform_initialization": False,
}
"""No backward pass, so nothing to recompute or to offload; the first refit fills the weights in."""


def generation_layout(config: RunConfig) -> ParallelismConfig:
    """Training's layout with generation's sizes, without what the engine does not know: CP, an interleaved schedule.

    ETP is derived anew where neither side gives it. Another number of stages means even ones: an uneven split is
    written for training's. Sequences are split where training's are and TP is still over 1: megatron-core refuses it
    at TP 1.
    """
    training = config.parallelism
    names = [key.partition(".")[2] for key in SIZES]
    asked = {name: size for name in names if (size := getattr(config.generation, name)) is not None}
    layout = replace(
        training,
        context_parallel_size=1,
        virtual_pipeline_model_parallel_size=None,
        microbatch_group_size_per_vp_stage=None,
        data_parallel_size=None,
        **asked,
    )
    if layout.pipeline_model_parallel_size != training.pipeline_model_parallel_size:
        layout = replace(layout, **_EVEN)
    return replace(layout, sequence_parallel=training.sequence_parallel and layout.tensor_model_parallel_size > 1)


def has_second_model(config: RunConfig) -> bool:
    """Generation cannot run on training's own model: one of the four sizes is another one."""
    return _sizes(generation_layout(config)) != _sizes(config.parallelism)


def _sizes(layout: ParallelismConfig) -> tuple[int, ...]:
    return (
        layout.tensor_model_parallel_size,
        layout.pipeline_model_parallel_size,
        layout.expert_model_parallel_size,
        derive_expert_tensor_parallel_size(layout),
    )


def inference_fields(config: RunConfig) -> dict[str, Any]:
    """What the second model's provider has beside training's: the layout, also where it is null, and no training."""
    layout = generation_layout(config)
    nullable = {name: getattr(layout, name) for name in (*_EVEN, "virtual_pipeline_model_parallel_size")}
    return {**nullable, **parallelism.provider_fields(replace(config, parallelism=layout)), **_NO_TRAINING}


def refit_method(config: RunConfig) -> RefitMethod:
    """What carries the weights: as asked; null is gloo on the CPU platform and NCCL elsewhere."""
    if config.generation.refit_method is not None:
        return config.generation.refit_method
    return RefitMethod.gloo if config.platform.kind is PlatformKind.cpu else RefitMethod.nccl

"""The parallel layout a configuration means, with every size that was left open filled in.

Owns the derivation only. It never refuses: a layout that does not fit is for the rules in `megatron_setup.parallelism`.
"""

import math
from dataclasses import dataclass

from launcher.schema import ParallelismConfig, RunConfig


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Sizes in ranks, in megatron-core's names; the virtual size counts model chunks per pipeline rank."""

    tensor_model_parallel_size: int
    pipeline_model_parallel_size: int
    virtual_pipeline_model_parallel_size: int | None
    context_parallel_size: int
    data_parallel_size: int
    expert_model_parallel_size: int
    expert_tensor_parallel_size: int
    expert_data_parallel_size: int
    world_size: int

    @property
    def model_size(self) -> int:
        """Ranks that hold one copy of everything but the experts: TP x CP x PP."""
        return self.tensor_model_parallel_size * self.context_parallel_size * self.pipeline_model_parallel_size

    @property
    def expert_model_size(self) -> int:
        """Ranks that hold one copy of the experts: ETP x EP x PP."""
        return self.expert_tensor_parallel_size * self.expert_model_parallel_size * self.pipeline_model_parallel_size

    @property
    def smallest_world(self) -> int:
        """The fewest ranks that both grids fit: every valid world is a multiple."""
        return math.lcm(self.model_size, self.expert_model_size)


def derive_layout(config: RunConfig) -> Layout:
    """The layout of a run.

    World: `cluster.num_processes`, else TP x CP x PP x `data_parallel_size`, else the smallest that both TP x CP x PP
    and ETP x EP x PP divide. DP and EDP are what the world leaves, as in megatron-core 0.19.2
    `initialize_model_parallel`.
    """
    parallelism = config.parallelism
    expert_tensor = derive_expert_tensor_parallel_size(parallelism)
    tensor, context = parallelism.tensor_model_parallel_size, parallelism.context_parallel_size
    pipeline, expert = parallelism.pipeline_model_parallel_size, parallelism.expert_model_parallel_size
    model, experts = tensor * context * pipeline, expert_tensor * expert * pipeline
    if config.cluster.num_processes is not None:
        world = config.cluster.num_processes
    elif parallelism.data_parallel_size is not None:
        world = model * parallelism.data_parallel_size
    else:
        world = math.lcm(model, experts)
    return Layout(
        tensor_model_parallel_size=tensor,
        pipeline_model_parallel_size=pipeline,
        virtual_pipeline_model_parallel_size=parallelism.virtual_pipeline_model_parallel_size,
        context_parallel_size=context,
        data_parallel_size=world // max(model, 1),
        expert_model_parallel_size=expert,
        expert_tensor_parallel_size=expert_tensor,
        expert_data_parallel_size=world // max(experts, 1),
        world_size=world,
    )


def derive_expert_tensor_parallel_size(parallelism: ParallelismConfig) -> int:
    """ETP, where null as upstream fills it in: 1 with EP > 1 (Megatron-Bridge 0.6.2
    `_set_moe_expert_tensor_parallel_default`, which comes first), else TP (megatron-core 0.19.2 `__post_init__`)."""
    if parallelism.expert_tensor_parallel_size is not None:
        return parallelism.expert_tensor_parallel_size
    return 1 if parallelism.expert_model_parallel_size > 1 else parallelism.tensor_model_parallel_size

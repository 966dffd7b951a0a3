"""The fp32 copies that an optimizer keeps of the model's weights, brought up to date after a load over the weights.

Owns that one walk over the copies. Loading is elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from megatron.core.optimizer import ChainedOptimizer, MegatronOptimizer
from megatron.core.optimizer.cpu_offloading import HybridDeviceOptimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer


@torch.no_grad()
def sync_fp32_copies(optimizer: MegatronOptimizer) -> None:
    """Copy the model's weights into every fp32 copy that the optimizer steps on. Optimizer state is left alone.

    With CPU offload there are up to three: this rank's shard (`shard_fp32_from_float16_groups`), the copy in host
    memory that the CPU's optimizer steps on (`gpu_params_map_cpu_copy`), and the fp32 copy of a narrow parameter
    (`param_to_fp32_param`). Upstream's `reload_model_params` refreshes the last one only. Left stale, the first step
    after a load updates what the model was built with and writes that over the loaded weights: a plausible loss, and a
    model that never saw its checkpoint. An optimizer built after the load has nothing stale; this is then harmless.
    """
    for each in _parts(optimizer):
        inner = each.optimizer
        if isinstance(each, DistributedOptimizer) and isinstance(inner, HybridDeviceOptimizer):
            _sync_shards(each)
            for param, copy in (*inner.gpu_params_map_cpu_copy.items(), *inner.param_to_fp32_param.items()):
                copy.copy_(param)
        else:
            each.reload_model_params()


def _parts(optimizer: MegatronOptimizer) -> Iterator[Any]:
    """Dense and expert parameters have optimizers of their own; one without parameters on this rank has no copies."""
    parts: list[Any] = optimizer.chained_optimizers if isinstance(optimizer, ChainedOptimizer) else [optimizer]
    return (each for each in parts if not each.is_stub_optimizer)


def _sync_shards(optimizer: DistributedOptimizer) -> None:
    """fp32 shards from the model; None stands where the inner optimizer holds the fp32 copy."""
    for params, shards in zip(optimizer.model_float16_groups, optimizer.shard_fp32_from_float16_groups, strict=True):
        for param, shard in zip(params, shards, strict=True):
            if shard is not None:
                mine = optimizer._get_model_param_range_map(param)["param"]
                shard.copy_(param.view(-1)[mine.start : mine.end])

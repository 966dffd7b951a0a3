"""Building: the provider of a converted checkpoint, the wrapped model with its weights, the optimizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from megatron.bridge.training.checkpointing import _load_model_weights_from_checkpoint as load_weights
from megatron.bridge.training.model_load_save import load_model_config
from megatron.core.distributed import DistributedDataParallelConfig, finalize_model_grads
from megatron.core.optimizer import MegatronOptimizer, OptimizerConfig, get_megatron_optimizer
from megatron.core.transformer.module import MegatronModule
from megatron.core.utils import get_model_config

import megatron_setup.moe
import megatron_setup.parallelism
import megatron_setup.performance
import megatron_setup.precision
from launcher.schema import RunConfig
from megatron_setup.optimizer import ddp_fields, optimizer_fields
from megatron_setup.provider import finalize, set_fields, upstream_value

_TABLES = (megatron_setup.precision, megatron_setup.parallelism, megatron_setup.performance)


def build_provider(config: RunConfig, *, iteration: Path) -> Any:
    """The finalized provider of a Bridge checkpoint, with every asked field set and read back."""
    provider, _ = load_model_config(str(iteration))
    tables = (*_TABLES, megatron_setup.moe) if provider.num_moe_experts else _TABLES
    fields: dict[str, Any] = {}
    for table in tables:
        for name, value in table.provider_fields(config).items():
            assert name not in fields, f"two tables set the provider field {name}"
            fields[name] = value
    set_fields(provider, fields=fields)
    finalize(provider, fields=fields)
    return provider


def build_model(config: RunConfig, *, provider: Any, iteration: Path) -> list[MegatronModule]:
    """The model's chunks on this rank: weights loaded before they are wrapped for precision and data parallelism."""

    def load(model: list[MegatronModule]) -> list[MegatronModule]:
        load_weights(str(iteration), model)
        return model

    return provider.provide_distributed_model(
        ddp_config=DistributedDataParallelConfig(**ddp_fields(config)), wrap_with_ddp=True, pre_wrap_hook=load
    )


def build_optimizer(config: RunConfig, *, model: list[MegatronModule]) -> MegatronOptimizer:
    """The optimizer over the model's chunks; also gives the model its hooks for gradient scaling and reduction."""
    fields = {name: upstream_value(value) for name, value in optimizer_fields(config).items()}
    optimizer = get_megatron_optimizer(OptimizerConfig(**fields), model)
    for chunk in model:
        model_config = get_model_config(chunk)
        model_config.grad_scale_func = optimizer.scale_loss
        model_config.finalize_model_grads_func = finalize_model_grads
    return optimizer


def peak_memory_gb() -> float:
    """Largest GPU memory this process has held; 0 on a CPU."""
    return torch.cuda.max_memory_allocated() / 2**30

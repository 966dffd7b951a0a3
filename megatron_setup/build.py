"""Building: the provider of a converted checkpoint, the wrapped model with its weights, the optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from megatron.bridge.training.config import ConfigContainer
from megatron.bridge.training.optim import setup_optimizer
from megatron.core.distributed import finalize_model_grads
from megatron.core.optimizer import MegatronOptimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.moe.router import Router
from megatron.core.utils import get_model_config

from launcher.schema import RunConfig
from megatron_setup import tables
from megatron_setup.model_config import load_provider
from megatron_setup.model_overrides import merge_overrides
from megatron_setup.model_source import ModelSource
from megatron_setup.provider import finalize, read_back, set_fields
from megatron_setup.weights import load_weights

PreWrapHook = Callable[[list[MegatronModule]], list[MegatronModule]]
"""Changes the chunks of a model that has its weights, before they are wrapped for precision and data parallelism."""


def build_provider(config: RunConfig, *, source: ModelSource) -> Any:
    """The provider of a source, with every asked field set and overrides merged; not finalized."""
    provider = load_provider(config, source=source)
    set_fields(provider, fields=_provider_fields(config, provider=provider))
    return merge_overrides(provider, overrides=config.model.model_overrides)


def finalize_provider(config: RunConfig, *, provider: Any) -> None:
    """Run upstream's checks and derivations, once, and read every asked field back."""
    finalize(provider, fields=_provider_fields(config, provider=provider))


def _provider_fields(config: RunConfig, *, provider: Any) -> dict[str, Any]:
    return tables.provider_fields(config, has_experts=bool(provider.num_moe_experts))


def build_model(
    config: RunConfig, *, container: ConfigContainer, iteration: Path | None, hooks: Sequence[PreWrapHook] = ()
) -> list[MegatronModule]:
    """The model's chunks on this rank; weights, then `hooks` in order, then the wraps.

    Weights are loaded first because the wraps copy them into buffers of their own. `iteration` None: they come later.
    """
    provider: Any = container.model

    def prepare(model: list[MegatronModule]) -> list[MegatronModule]:
        if iteration is not None:
            load_weights(model, iteration=iteration)
        if config.moe.freeze_moe_router:
            freeze_routers(model)
        for hook in hooks:
            model = hook(model)
        return model

    model = provider.provide_distributed_model(ddp_config=container.ddp, wrap_with_ddp=True, pre_wrap_hook=prepare)
    read_back(provider, fields=_provider_fields(config, provider=provider))
    return model


def freeze_routers(model: list[MegatronModule]) -> None:
    """Take the routers' weights out of training; before the wrap, which makes gradient buffers for what trains."""
    for chunk in model:
        for module in chunk.modules():
            if isinstance(module, Router):
                module.requires_grad_(False)


def build_optimizer(
    config: RunConfig, *, container: ConfigContainer, model: list[MegatronModule]
) -> tuple[MegatronOptimizer, OptimizerParamScheduler]:
    """Optimizer and schedule of the chunks; also gives the model its hooks for gradient scaling and reduction."""
    optimizer, scheduler = setup_optimizer(
        container.optimizer,
        container.scheduler,
        model,
        use_gloo_process_groups=container.dist.use_gloo_process_groups,
    )
    for chunk in model:
        model_config = get_model_config(chunk)
        model_config.grad_scale_func = optimizer.scale_loss
        model_config.finalize_model_grads_func = finalize_model_grads
    if config.optimizer.ddp.overlap_grad_reduce:
        _reduce_during_backward(model)
    return optimizer, scheduler


def _reduce_during_backward(model: list[MegatronModule]) -> None:
    """Tell the schedule how to hold a chunk's reduction back until its last microbatch.

    Without it every microbatch would be reduced on its own. As Bridge's `training.setup._update_model_config_funcs`:
    functions for one chunk, lists for several.
    """
    hold_back, start = [chunk.no_sync for chunk in model], [chunk.start_grad_sync for chunk in model]
    for chunk in model:
        model_config = get_model_config(chunk)
        model_config.no_sync_func = hold_back if len(model) > 1 else hold_back[0]
        model_config.grad_sync_func = start if len(model) > 1 else start[0]

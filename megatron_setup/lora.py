"""LoRA adapters in a model whose base weights are loaded: added and trained, the base frozen.

Upstream's adapters throughout; owns the check that every name of a person's matches, and switching adapters off for the
reference policy. The fields and their rules are in `peft.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager

import torch
from megatron.bridge.peft.adapter_wrapper import AdapterWrapper
from megatron.bridge.peft.lora import LoRA
from megatron.bridge.peft.utils import create_peft_hook, wildcard_match
from megatron.core.transformer.module import MegatronModule

from launcher.errors import ConfigError
from launcher.schema import RunConfig
from launcher.suggest import nearest
from megatron_setup.peft import lora_fields
from megatron_setup.provider import upstream_value

ModelHook = Callable[[list[MegatronModule]], list[MegatronModule]]


def bridge_lora(config: RunConfig) -> LoRA | None:
    """Bridge's LoRA of the run, for `ConfigContainer.peft`; None where `model.peft.enabled` is false.

    With it in the container Bridge's `save_checkpoint` writes the adapters only, and `load_checkpoint` puts them into a
    model that has the base weights.
    """
    if not config.model.peft.enabled:
        return None
    return LoRA(**{name: upstream_value(value) for name, value in lora_fields(config).items()})


def lora_hook(config: RunConfig) -> ModelHook:
    """The last step before the model is wrapped: adapters are added, everything else is frozen.

    After the base weights are loaded, since the wrapped linears have other names; before mixed precision and DDP, which
    makes gradient buffers for what trains. The hook raises ConfigError for a name that matches no module.
    """
    lora = bridge_lora(config)
    assert lora is not None, "a hook of LoRA without model.peft.enabled"
    add = create_peft_hook(lora)

    def adapt(model: list[MegatronModule]) -> list[MegatronModule]:
        _check_names_match(lora, model=model)
        try:
            return add(model) or model
        except NotImplementedError as error:
            raise ConfigError(
                f"error: model.peft.target_modules is {lora.target_modules}, LoRA needs linear layers\n"
                f"  why:    {error}"
            ) from error

    return adapt


def _check_names_match(lora: LoRA, *, model: list[MegatronModule]) -> None:
    """Every name to adapt or to exclude matches a module of some rank.

    Upstream warns for a target and says nothing of an exclusion: a misspelt one would train less, or more, than asked.
    """
    names = _names_of_all_ranks(model)
    for key, patterns in (("target_modules", lora.target_modules), ("exclude_modules", lora.exclude_modules)):
        for pattern in patterns:
            if not any(name.rpartition(".")[2] == pattern or wildcard_match(pattern, name) for name in names):
                raise _no_such_module(pattern, key=key, patterns=patterns, names=names)


def _names_of_all_ranks(model: list[MegatronModule]) -> set[str]:
    """Full names of all modules; a pipeline stage has some of them."""
    mine = {name for chunk in model for name, _ in chunk.named_modules() if name}
    everybody: list[set[str]] = [set()] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(everybody, mine)
    return set().union(*everybody)


def _no_such_module(pattern: str, *, key: str, patterns: Sequence[str], names: Collection[str]) -> ConfigError:
    known = nearest(pattern, names=sorted({name.rpartition(".")[2] for name in names}))
    repaired = ",".join(known[0] if other == pattern else other for other in patterns)
    return ConfigError(
        f"error: model.peft.{key} names {pattern}, which no module of this model is called\n"
        f"  why:    Megatron-Bridge would leave it out with a warning at most; nearest: {', '.join(known[:3])}\n"
        f"hint: model.peft.{key}=[{repaired}]"
    )


@contextmanager
def adapters_disabled(model: list[MegatronModule]) -> Generator[None]:
    """The base model for as long as the block lasts: the reference policy. May be nested.

    A disabled adapter returns its wrapped linear's output untouched, so log-probabilities are bitwise those of the
    model without LoRA; nothing is copied.
    """
    enabled = [
        module
        for chunk in model
        for module in chunk.modules()
        if isinstance(module, AdapterWrapper) and module._adapter_enabled  # upstream has no other way to ask
    ]
    for module in enabled:
        module.disable_adapter_layers()
    try:
        yield
    finally:
        for module in enabled:
            module.enable_adapter_layers()

"""`model.model_overrides`: fields of the provider without a key of their own, merged into it recursively, last.

Owns the merge and the list of fields that have a key. It never changes what it is given. Torch-free.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, cast

from launcher.errors import ConfigError
from launcher.keys import keys_of
from launcher.suggest import nearest

ROOT = "model.model_overrides"

_GROUPS = ("parallelism", "moe", "mtp", "precision", "performance")
_RENAMED = {
    "params_dtype": "precision.dtype",
    "autocast_dtype": "precision.dtype",
    "bf16": "precision.dtype",
    "fp16": "precision.dtype",
    "moe_deepep_num_sms": "moe.moe_flex_dispatcher_num_sms",
    "moe_hybridep_num_sms": "moe.moe_flex_dispatcher_num_sms",
    "moe_router_padding_for_fp8": "moe.moe_router_padding_for_quantization",
    "moe_layer_recompute": "performance.recompute_modules",
    "seq_length": "model.seq_length",
    "attention_dropout": "model.attention_dropout",
    "hidden_dropout": "model.hidden_dropout",
    "make_vocab_size_divisible_by": "model.make_vocab_size_divisible_by",
    "perform_initialization": "model.perform_initialization",
    "freeze_language_model": "model.freeze_language_model",
    "freeze_vision_model": "model.freeze_vision_model",
    "freeze_vision_projection": "model.freeze_vision_projection",
    "calculate_per_token_loss": "optimizer.calculate_per_token_loss",
    "cuda_graph_impl": "generation.cuda_graph_impl",
    "inference_cuda_graph_scope": "generation.inference_cuda_graph_scope",
    "inference_sampling_seed": "job.seed",
    "batch_invariant_mode": "zero_kl.batch_invariant_mode",
}

FIRST_CLASS: Mapping[str, str] = {
    **{key.rpartition(".")[2]: key for key in keys_of() if key.partition(".")[0] in _GROUPS},
    **_RENAMED,
}
"""The key by the provider's field, for every field that has one."""


def merge_overrides[T](target: T, *, overrides: Mapping[str, Any], path: str = ROOT) -> T:
    """A copy of a dataclass or a mapping with the overrides merged in, level by level; `target` stays as it is.

    A mapping in `overrides` goes into a nested dataclass or mapping and replaces anything else. Raises ConfigError with
    the dotted path for a field that the dataclass lacks, naming the nearest.
    """
    if isinstance(target, Mapping):
        mapping = cast(Mapping[str, Any], target)
        changed = {n: _merge_value(mapping.get(n), override=v, path=f"{path}.{n}") for n, v in overrides.items()}
        return cast(T, {**mapping, **changed})
    assert dataclasses.is_dataclass(target) and not isinstance(target, type), f"{path} is no dataclass instance"
    names = [field.name for field in dataclasses.fields(target) if field.init]
    for name in overrides:
        if name not in names:
            raise _unknown(name, names=names, owner=type(target), path=path)
    changed = {n: _merge_value(getattr(target, n), override=v, path=f"{path}.{n}") for n, v in overrides.items()}
    return dataclasses.replace(target, **changed)


def _merge_value(current: Any, *, override: Any, path: str) -> Any:
    descends = isinstance(current, Mapping) or (dataclasses.is_dataclass(current) and not isinstance(current, type))
    if not isinstance(override, Mapping) or not descends:
        return override
    return merge_overrides(current, overrides=cast(Mapping[str, Any], override), path=path)


def _unknown(name: str, *, names: list[str], owner: type, path: str) -> ConfigError:
    return ConfigError(
        f"error: {path}.{name} is not a field of {owner.__name__}\n"
        f"  why:    this model's provider has no such field; nearest: {', '.join(nearest(name, names=names)[:3])}\n"
        f"hint: ~{path}.{name}"
    )

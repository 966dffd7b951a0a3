"""Another value for every key of the schema: what a test sets to see whether a key does anything."""

import types
from dataclasses import is_dataclass, replace
from enum import Enum
from typing import Any

from launcher.keys import Key, keys_of
from launcher.schema import RunConfig

SPECIAL: dict[str, Any] = {
    "model.hf_config": {"model_type": "llama", "hidden_size": 8},
    "moe.moe_router_dtype": "fp64",
    "performance.flash_attention_version": 3,
    "parallelism.pipeline_model_parallel_layout": "Ettt|tL",
    "optimizer.ddp.grad_reduce_in_fp32": False,
}
"""Keys whose type does not say what is a sensible value."""


def with_another_value(config: RunConfig, *, key: str) -> RunConfig:
    """The configuration with the key at a value of its type that it does not have."""
    return _replaced(config, parts=key.split("."), value=another_value(keys_of()[key], config=config))


def another_value(key: Key, *, config: RunConfig) -> Any:
    """A value of the key's type unlike the one it has, where the type has two; a list gets one element."""
    if key.name in SPECIAL:
        return SPECIAL[key.name]
    found = _value(config, key=key.name)
    if key.is_free:
        return {"entry": 1}
    if key.is_list:
        return [_another(None, kind=key.element_type)]
    return _another(found, kind=key.element_type)


def _another(found: Any, *, kind: Any) -> Any:
    if isinstance(kind, type) and issubclass(kind, Enum):
        others = [member for member in kind if member is not found]
        return found if not others else others[-1] if found is None else others[0]
    by_type = {bool: lambda: not found, int: lambda: (found or 1) + 1, float: lambda: (found or 0.0) + 0.5}
    return by_type[kind]() if kind in by_type else f"{found or ''}x"


def _value(config: RunConfig, *, key: str) -> Any:
    node: Any = config
    for part in key.split("."):
        node = getattr(node, part)
    return node


def _replaced(node: Any, *, parts: list[str], value: Any) -> Any:
    assert is_dataclass(node) and not isinstance(node, type | types.ModuleType)
    first, *rest = parts
    return replace(node, **{first: _replaced(getattr(node, first), parts=rest, value=value) if rest else value})

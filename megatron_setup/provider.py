"""The one place that sets fields of a Megatron-Bridge provider, finalizes it, and reads every field back."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from enum import Enum
from typing import Any, Protocol

import torch
from megatron.core.transformer.enums import AttnBackend

from launcher.errors import ConfigError
from launcher.schema import Dtype
from launcher.schema.performance import AttentionBackend


class Provider(Protocol):
    """What is used of a Megatron-Bridge model provider here."""

    def finalize(self) -> None:
        """Run megatron-core's deferred asserts and derivations."""
        ...


def upstream_value(value: Any) -> Any:
    """Our torch-free value as megatron-core spells it: dtypes, its own enums, plain values."""
    if isinstance(value, Dtype):
        return getattr(torch, value.value)
    if isinstance(value, AttentionBackend):
        return AttnBackend[value.value]
    return value.value if isinstance(value, Enum) else value


def set_fields(provider: Provider, *, fields: Mapping[str, Any]) -> None:
    """Set each field once. Raises ConfigError for a field this provider's type does not have."""
    for name, value in fields.items():
        if not hasattr(provider, name):
            near = difflib.get_close_matches(name, [n for n in dir(provider) if not n.startswith("_")], n=3)
            raise ConfigError(
                f"error: {type(provider).__name__} has no field {name}\n"
                f"  why:    this model's provider cannot do what was asked; nearest: {', '.join(near) or 'none'}"
            )
        setattr(provider, name, upstream_value(value))


def finalize(provider: Provider, *, fields: Mapping[str, Any]) -> None:
    """Run upstream's own checks, then compare every asked field with what is in force.

    Bridge's providers defer megatron-core's `__post_init__` to `finalize()`; some of it rewrites fields without a word.
    Raises ConfigError with upstream's message, or naming every field that changed.
    """
    try:
        provider.finalize()
    except (AssertionError, ValueError) as error:
        raise ConfigError(f"error: megatron-core refuses this model configuration\n  why:    {error}") from error
    changed = [
        f"  {name}: asked {upstream_value(value)}, in force {getattr(provider, name)}"
        for name, value in fields.items()
        if getattr(provider, name) != upstream_value(value)
    ]
    if changed:
        raise ConfigError("error: megatron-core changed fields that were asked for\n" + "\n".join(changed))

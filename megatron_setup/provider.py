"""The one place that sets fields of a Megatron-Bridge provider, finalizes it, and reads every field back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Protocol, cast

import torch
from megatron.core.transformer.enums import AttnBackend
from megatron.core.transformer.enums import InferenceCudaGraphScope as UpstreamScope

from launcher.errors import ConfigError
from launcher.schema import Dtype
from launcher.schema.generation import InferenceCudaGraphScope
from launcher.schema.performance import AttentionBackend
from launcher.suggest import nearest


class Provider(Protocol):
    """What is used of a Megatron-Bridge model provider here."""

    def finalize(self) -> None:
        """Run megatron-core's deferred asserts and derivations."""
        ...


def upstream_value(value: Any) -> Any:
    """Our torch-free value as megatron-core spells it: dtypes, its own enums, plain values, lists of them."""
    if isinstance(value, Dtype):
        return getattr(torch, value.value)
    if isinstance(value, AttentionBackend):
        return AttnBackend[value.value]
    if isinstance(value, InferenceCudaGraphScope):
        return UpstreamScope[value.value]
    if isinstance(value, list):
        return [upstream_value(item) for item in cast(Sequence[Any], value)]
    return value.value if isinstance(value, Enum) else value


def set_fields(provider: Provider, *, fields: Mapping[str, Any]) -> None:
    """Set each field once. Raises ConfigError for a field this provider's type does not have."""
    for name, value in fields.items():
        if not hasattr(provider, name):
            names = [known for known in vars(provider) if not known.startswith("_")]
            raise ConfigError(
                f"error: {type(provider).__name__} has no field {name}\n"
                "  why:    this model's provider cannot do what was asked; "
                f"nearest: {', '.join(nearest(name, names=names)[:3])}"
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
    read_back(provider, fields=fields)


def read_back(provider: Provider, *, fields: Mapping[str, Any]) -> None:
    """Compare every asked field with the provider's. Raises ConfigError naming each that is another one.

    Called again after the model is built: `provide()` changes fields too.
    """
    changed = [
        f"  {name}: asked {upstream_value(value)}, in force {getattr(provider, name)}"
        for name, value in fields.items()
        if not _is_in_force(getattr(provider, name), asked=upstream_value(value))
    ]
    if changed:
        raise ConfigError("error: upstream changed fields that were asked for\n" + "\n".join(changed))


def _is_in_force(found: Any, *, asked: Any) -> bool:
    """Equal, or the object that megatron-core made of a written pipeline layout, which shows the text it is of."""
    return bool(found == asked) or (isinstance(asked, str) and not isinstance(found, str) and repr(found) == asked)

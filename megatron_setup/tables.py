"""The tables of this package as one: every rule, the provider's fields, the environment. Torch-free.

Owns the collection. Two tables that set one field or variable are our bug.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from launcher.requirement import Requirement
from launcher.schema import RunConfig
from megatron_setup import (
    checkpoint,
    draft,
    generation,
    gpu_only,
    model,
    moe,
    mtp,
    optimizer,
    parallelism,
    peft,
    performance,
    precision,
    training,
    value,
)

_PROVIDER = (model, parallelism, precision, performance, optimizer, generation, mtp)
_ENVIRONMENT = (parallelism, moe, performance, generation)

REQUIREMENTS: tuple[Requirement, ...] = (
    *parallelism.REQUIREMENTS,
    *model.REQUIREMENTS,
    *moe.REQUIREMENTS,
    *mtp.REQUIREMENTS,
    *peft.REQUIREMENTS,
    *draft.REQUIREMENTS,
    *precision.REQUIREMENTS,
    *performance.REQUIREMENTS,
    *optimizer.REQUIREMENTS,
    *checkpoint.REQUIREMENTS,
    *generation.REQUIREMENTS,
    *training.REQUIREMENTS,
    *value.REQUIREMENTS,
    *gpu_only.REQUIREMENTS,
)


def provider_fields(config: RunConfig, *, has_experts: bool) -> dict[str, Any]:
    """Every field of the provider that the run sets; those of MoE only for a model with experts."""
    tables = (*_PROVIDER, moe) if has_experts else _PROVIDER
    return _merged(table.provider_fields(config) for table in tables)


def environment(config: RunConfig) -> dict[str, str]:
    """Every environment variable that the set-up of Megatron wants."""
    return _merged(table.environment(config) for table in _ENVIRONMENT)


def _merged[V](parts: Iterable[Mapping[str, V]]) -> dict[str, V]:
    merged: dict[str, V] = {}
    for part in parts:
        twice = merged.keys() & part.keys()
        assert not twice, f"two tables set {', '.join(sorted(twice))}"
        merged |= part
    return merged

"""Environment variables as data: collected from the tables, printed in the plan, set once by the worker.

Owns the one place that writes `os.environ`. A variable exported with another value is an error.
"""

import os
from collections.abc import Mapping

import megatron_setup.tables
import zero_kl.environment
from launcher.errors import ConfigError, NodeError
from launcher.schema import PlatformKind, RunConfig

_CPU = {"OMP_NUM_THREADS": "1"}
_SHARED_GPU = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
"""NCCL 2.30 refuses two ranks on one GPU without it; the versions before refuse them always."""


def environment(config: RunConfig) -> dict[str, str]:
    """Every variable the run sets. Two tables that disagree about one is our bug."""
    sources = [
        megatron_setup.tables.environment(config),
        zero_kl.environment.environment(config),
    ]
    if config.platform.kind is PlatformKind.cpu:
        sources.append(_CPU)
    elif config.cluster.ranks_per_gpu > 1:
        sources.append(_SHARED_GPU)
    merged: dict[str, str] = {}
    for source in sources:
        for name, value in source.items():
            assert merged.get(name, value) == value, f"two tables set {name}: {merged[name]} and {value}"
            merged[name] = value
    return merged


def refusals(config: RunConfig, *, exported: Mapping[str, str]) -> list[str]:
    """One text for each exported variable that fights the run; the zero-KL rows say why, the others only what."""
    texts = zero_kl.environment.check_exported(config, exported=exported)
    said = {row.name for row in zero_kl.environment.VARIABLES}
    return texts + [
        f"error: {name} is exported as {exported[name]}, the run needs {value}\nhint: unset {name}"
        for name, value in environment(config).items()
        if name in exported and exported[name] != value and name not in said
    ]


def apply_environment(config: RunConfig) -> None:
    """Set the variables in this process, before torch is imported. Raises NodeError where an exported one fights."""
    found = refusals(config, exported=os.environ)
    if found:
        raise NodeError("\n\n".join(found))
    os.environ.update(environment(config))


def check_environment(config: RunConfig) -> None:
    """Refuse at submission what the worker would refuse: local ranks inherit this environment."""
    found = refusals(config, exported=os.environ)
    if found:
        raise ConfigError("\n\n".join(found))

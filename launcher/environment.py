"""Environment variables as data: collected from the tables, printed in the plan, set once by the worker.

Owns the one place that writes `os.environ`. A variable of the person's that says otherwise is an error, never overwritten.
"""

import os
from collections.abc import Mapping

import megatron_setup.parallelism
from launcher.errors import ConfigError, NodeError
from launcher.schema import PlatformKind, RunConfig

_CPU = {"OMP_NUM_THREADS": "1"}
_ALWAYS = {"TOKENIZERS_PARALLELISM": "false"}


def environment(config: RunConfig) -> dict[str, str]:
    """Every variable the run sets. Two tables that disagree about one is our bug."""
    sources = [_ALWAYS, megatron_setup.parallelism.environment(config)]
    if config.platform.kind is PlatformKind.cpu:
        sources.append(_CPU)
    merged: dict[str, str] = {}
    for source in sources:
        for name, value in source.items():
            assert merged.get(name, value) == value, f"two tables set {name}: {merged[name]} and {value}"
            merged[name] = value
    return merged


def conflicts(wanted: Mapping[str, str], *, present: Mapping[str, str]) -> list[str]:
    """One line for each variable that is exported with another value than the run needs."""
    return [
        f"{name} is exported as {present[name]}, the run needs {value}; unset {name}"
        for name, value in wanted.items()
        if name in present and present[name] != value
    ]


def apply_environment(config: RunConfig) -> None:
    """Set the variables in this process, before torch is imported. Raises NodeError for a conflict."""
    wanted = environment(config)
    found = conflicts(wanted, present=os.environ)
    if found:
        raise NodeError("\n".join(f"error: {line}" for line in found))
    os.environ.update(wanted)


def check_environment(config: RunConfig) -> None:
    """Refuse at submission what the worker would refuse: local ranks inherit this environment."""
    found = conflicts(environment(config), present=os.environ)
    if found:
        raise ConfigError("\n".join(f"error: {line}" for line in found))

"""Secrets by name only: the variables must be exported, and no value may stand in what is written down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from launcher.errors import ConfigError
from launcher.resolved import dump_resolved
from launcher.schema import RunConfig

USUAL = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY")
"""Looked for in the configuration also where `cluster.secrets` does not name them."""

_SHORTEST = 8
"""A shorter value is no secret, and may stand anywhere by chance."""


def check_secrets(config: RunConfig, *, overrides: Sequence[str], exported: Mapping[str, str]) -> None:
    """Raises ConfigError for a name that is not exported, and for a value that would be written to the run's folder."""
    names = config.cluster.secrets
    problems = [
        f"error: cluster.secrets names {name}, it is not exported\nhint: export {name}=..."
        for name in names
        if not exported.get(name)
    ]
    values = {name: exported.get(name, "") for name in dict.fromkeys((*names, *USUAL))}
    secrets = {name: value for name, value in values.items() if len(value) >= _SHORTEST}
    written = "\n".join((dump_resolved(config), *overrides)) if secrets else ""
    problems += [
        f"error: the configuration holds the value of {name}, and it is written to the run's folder\n"
        f"hint: cluster.secrets=[{name}]"
        for name, value in secrets.items()
        if value in written
    ]
    if problems:
        raise ConfigError("\n\n".join(problems))

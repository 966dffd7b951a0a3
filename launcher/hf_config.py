"""The config.json that a run works with: the checkpoint's, with `model.hf_config_overrides` merged in.

Owns reading and merging, so that the rules, the conversion and the tokenizer see one configuration. Torch-free.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from launcher.errors import ConfigError
from launcher.schema import ModelConfig
from launcher.schema.model import CheckpointFormat


def overrides_in_force(model: ModelConfig) -> Mapping[str, Any]:
    """The overrides that change anything: a Bridge checkpoint brings the configuration it was trained with."""
    pretrained = model.pretrained_checkpoint
    ignored = pretrained.path is not None and pretrained.format is CheckpointFormat.megatron_bridge
    return {} if ignored else model.hf_config_overrides


def merged(config: Mapping[str, Any], *, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """A new mapping, merged recursively: one field of `rope_scaling` can be changed without repeating the others."""
    result = dict(config)
    for key, value in overrides.items():
        current = result.get(key)
        if isinstance(value, Mapping) and isinstance(current, Mapping):
            nested = cast(Mapping[str, Any], current)
            result[key] = merged(nested, overrides=cast(Mapping[str, Any], value))
        else:
            result[key] = value
    return result


def effective_hf_config(model: ModelConfig) -> dict[str, Any] | None:
    """The configuration with its overrides, or None where it is not known here (a Hub id).

    Raises ConfigError for a folder without a readable config.json.
    """
    if model.hf_config:
        return merged(model.hf_config, overrides=overrides_in_force(model))
    if model.hf_path is None or not Path(model.hf_path).is_dir():
        return None
    return merged(read_config_json(Path(model.hf_path)), overrides=overrides_in_force(model))


def read_config_json(folder: Path) -> dict[str, Any]:
    """The folder's config.json. Raises ConfigError where it is missing, damaged, or not a mapping."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if not isinstance(config, dict):
            raise ValueError(f"config.json holds a {type(config).__name__}, not a mapping")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"error: model.hf_path is {folder}, a Hugging Face folder needs a readable config.json\n  why:    {error}"
        ) from None
    return cast(dict[str, Any], config)

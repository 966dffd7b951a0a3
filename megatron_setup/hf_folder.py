"""The Hugging Face folder a run starts from, made where it is not the person's own: a random model, a changed config.

Owns the making; where the folders lie is `model_source`'s.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from transformers import AutoConfig

from launcher.errors import ConfigError
from launcher.files import write_json
from launcher.hf_config import effective_hf_config, merged, overrides_in_force, read_config_json
from launcher.schema import RunConfig
from launcher.suggest import nearest
from megatron_setup.cache import locked
from megatron_setup.model_source import hf_folder_of, weights_folder_of
from megatron_setup.random_model import make_random_hf_model


def ensure_hf_folder(config: RunConfig) -> Path:
    """The folder, made first where it is not the person's. Called by one rank. Raises ConfigError."""
    weights = weights_folder_of(config)
    if config.model.hf_path is None:
        _ensure_random_model(config, folder=weights)
    if not (weights / "config.json").is_file():
        raise ConfigError(
            f"error: model.hf_path is {weights}, a local Hugging Face folder with config.json is needed\n"
            "  why:    nothing is downloaded by a run; `hf download NAME --local-dir FOLDER` fetches a Hub id"
        )
    folder = hf_folder_of(config)
    if folder != weights:
        _ensure_changed_folder(folder, weights=weights, overrides=overrides_in_force(config.model))
    return folder


def _ensure_random_model(config: RunConfig, *, folder: Path) -> None:
    hf_config = effective_hf_config(config.model)
    assert hf_config is not None, "MD001 wants model.hf_path or model.hf_config"
    _check_known(overrides_in_force(config.model), config=config.model.hf_config)
    with locked(folder):
        if not folder.exists():
            make_random_hf_model(
                folder, hf_config=hf_config, dtype=config.precision.dtype.value, seed=config.model.init_seed
            )


def _ensure_changed_folder(folder: Path, *, weights: Path, overrides: Mapping[str, Any]) -> None:
    """A folder with the changed config.json and links to every other file of `weights`.

    A folder and not a changed object in memory: the conversion, the tokenizer, the export and Bridge's saves each read
    config.json for themselves, and transformers' `rope_scaling` setter drops the fields that an override leaves out.
    """
    original = read_config_json(weights)
    _check_known(overrides, config=original)
    with locked(folder):
        if folder.exists():
            return
        partial = folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        for path in weights.iterdir():
            if path.name != "config.json":
                (partial / path.name).symlink_to(path.resolve())
        write_json(partial / "config.json", data=merged(original, overrides=overrides))
        partial.rename(folder)


def _check_known(overrides: Mapping[str, Any], *, config: Mapping[str, Any]) -> None:
    """Raise ConfigError for a key that this model type has not: transformers keeps it and nobody reads it."""
    known = {*config, *AutoConfig.for_model(config["model_type"]).to_dict(), "rope_scaling", "rope_theta"}
    for key in overrides:
        if key not in known:
            raise ConfigError(
                f"error: model.hf_config_overrides.{key} is no key of a {config['model_type']} configuration\n"
                f"  why:    nearest: {', '.join(nearest(key, names=sorted(known))[:3])}\n"
                f"hint: ~model.hf_config_overrides.{key}"
            )


def count_parameters(folder: Path) -> int:
    """Parameters of the checkpoint, from the headers of its safetensors files; tied weights count once."""
    total = 0
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            total += sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    return total

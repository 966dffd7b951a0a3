"""Where a run's model comes from: the Hugging Face folder and the iteration of a Megatron checkpoint.

Owns the places, and makes nothing: `hf_folder` and `model_import` do. Torch-free.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import ConfigError
from launcher.fingerprint import folder_fingerprint, mapping_fingerprint
from launcher.hf_config import effective_hf_config, overrides_in_force
from launcher.paths import Outputs
from launcher.schema import ModelConfig, RunConfig
from launcher.schema.model import CheckpointFormat
from megatron_setup.iterations import Iteration, NotACheckpointError, find_iteration


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """What a model is made of. `hf_folder` has the tokenizer and config.json, `iteration` the weights.

    `format` decides where the architecture is read from: run_config.yaml (a conversion has one too) or config.json.
    `chosen` says how the iteration was found.
    """

    hf_folder: Path
    iteration: Path
    format: CheckpointFormat
    chosen: str


def resolve_source(config: RunConfig) -> ModelSource:
    """The source of a run whose folders are made. Raises ConfigError where the checkpoint is none."""
    hf_folder, pretrained = hf_folder_of(config), pretrained_iteration(config.model)
    if pretrained is not None:
        format = config.model.pretrained_checkpoint.format
        return ModelSource(hf_folder=hf_folder, iteration=pretrained.path, format=format, chosen=pretrained.chosen)
    found = find_iteration(converted_folder(config), format=CheckpointFormat.megatron_bridge)
    return ModelSource(
        hf_folder=hf_folder,
        iteration=found.path,
        format=CheckpointFormat.megatron_bridge,
        chosen=f"converted from {hf_folder}",
    )


def pretrained_iteration(model: ModelConfig) -> Iteration | None:
    """The iteration that `model.pretrained_checkpoint` means; None where it is off. Raises ConfigError."""
    pretrained = model.pretrained_checkpoint
    if pretrained.path is None:
        return None
    try:
        return find_iteration(Path(pretrained.path), format=pretrained.format)
    except NotACheckpointError as error:
        raise ConfigError(
            f"error: model.pretrained_checkpoint.path is {error.found}, {error.wanted} is needed"
        ) from error


def weights_folder_of(config: RunConfig) -> Path:
    """The Hugging Face folder with the weights: the person's, or where the random model lies or will lie."""
    model = config.model
    if model.hf_path is not None:
        return Path(model.hf_path)
    recipe = json.dumps([effective_hf_config(model), model.init_seed, config.precision.dtype.value], sort_keys=True)
    return Outputs(Path(config.output_dir)).random_model(hashlib.sha256(recipe.encode()).hexdigest()[:12])


def hf_folder_of(config: RunConfig) -> Path:
    """The Hugging Face folder that everything reads: the weights', or one with a changed config.json in front of it."""
    overrides, weights = overrides_in_force(config.model), weights_folder_of(config)
    if config.model.hf_path is None or not overrides:
        return weights
    digest = f"{folder_fingerprint(weights)}-{mapping_fingerprint(overrides)}"
    return Outputs(Path(config.output_dir)).random_model(digest)


def converted_folder(config: RunConfig) -> Path:
    """Where the conversion of this very checkpoint, with these overrides, by this very Bridge lies or will lie."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", config.model.name)
    overrides = overrides_in_force(config.model)
    parts = [folder_fingerprint(weights_folder_of(config))]
    if config.model.hf_path is not None and overrides:
        parts.append(mapping_fingerprint(overrides))
    parts.append(f"bridge{importlib.metadata.version('megatron-bridge')}")
    return Outputs(Path(config.output_dir)).converted(name, digest="-".join(parts))

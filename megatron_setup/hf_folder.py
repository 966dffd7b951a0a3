"""The Hugging Face folder a run starts from: a local folder, or a random model made here once."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path

from safetensors import safe_open

from launcher.errors import ConfigError
from launcher.paths import Outputs
from launcher.schema import RunConfig
from megatron_setup.cache import locked
from megatron_setup.random_model import make_random_hf_model


def hf_folder_of(config: RunConfig) -> Path:
    """Where the Hugging Face checkpoint lies or will lie; makes nothing."""
    model = config.model
    if model.hf_path is not None:
        return Path(model.hf_path)
    recipe = json.dumps([model.hf_config, model.init_seed, config.precision.dtype.value], sort_keys=True)
    return Outputs(Path(config.output_dir)).random_model(hashlib.sha256(recipe.encode()).hexdigest()[:12])


def ensure_hf_folder(config: RunConfig) -> Path:
    """The folder, made first where the model is a random one. Called by one rank."""
    folder = hf_folder_of(config)
    if config.model.hf_path is None:
        with locked(folder):
            if not folder.exists():
                make_random_hf_model(
                    folder,
                    hf_config=config.model.hf_config,
                    dtype=config.precision.dtype.value,
                    seed=config.model.init_seed,
                )
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"error: model.hf_path is {folder}, a local Hugging Face folder with config.json is needed\n"
            "  why:    nothing is downloaded by a run; `hf download NAME --local-dir FOLDER` fetches a Hub id"
        )
    return folder


def count_parameters(folder: Path) -> int:
    """Parameters of the checkpoint, from the headers of its safetensors files; tied weights count once."""
    total = 0
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            total += sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    return total

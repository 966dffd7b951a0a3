"""Convert a Hugging Face checkpoint to Megatron-Bridge's format once, and find the conversion again.

The folder's name depends on the source's content, the overrides and Bridge's version; a marker written last says it is
whole. One rank converts, under a file lock that dies with its process, so two jobs at once make one conversion.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError

from launcher.errors import ConfigError, ExperimentError
from launcher.files import disk_note, write_json
from launcher.schema import RunConfig
from megatron_setup.cache import locked
from megatron_setup.hf_folder import ensure_hf_folder
from megatron_setup.model_source import converted_folder

_MARKER = "complete.json"

Convert = Callable[[Path, Path], None]
"""Converts a Hugging Face folder into a folder that does not exist yet."""


def is_complete(folder: Path) -> bool:
    """True for a conversion that ran to its end."""
    return (folder / _MARKER).is_file()


def import_once(config: RunConfig, *, convert: Convert) -> None:
    """Make the Hugging Face folder, and convert it where a conversion is wanted and there is none. By one rank.

    The two formats of `model.pretrained_checkpoint` are Megatron's already. A killed conversion leaves only a temporary
    sibling, removed here by the next one. Raises ConfigError for a checkpoint that cannot be read, naming it.
    """
    hf_folder = ensure_hf_folder(config)
    if config.model.pretrained_checkpoint.path is not None:
        return
    target = converted_folder(config)
    with locked(target):
        if not is_complete(target) or config.model.force_reconvert_from_hf:
            _convert(hf_folder, target=target, convert=convert)


def _convert(hf_folder: Path, *, target: Path, convert: Convert) -> None:
    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        convert(hf_folder, partial)
    except (SafetensorError, KeyError, OSError, RuntimeError, ValueError) as error:
        full = disk_note(target.parent)  # before the half-written conversion is removed
        shutil.rmtree(partial, ignore_errors=True)
        if full:
            raise ExperimentError(f"error: the conversion to {target} was not written: {error}{full}") from error
        raise ConfigError(
            f"error: model.hf_path is {hf_folder}, Megatron-Bridge cannot convert it\n"
            f"  why:    {type(error).__name__}: {error}"
        ) from error
    write_json(partial / _MARKER, data={"source": str(hf_folder)})
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)

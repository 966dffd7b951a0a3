"""Convert a Hugging Face checkpoint to Megatron-Bridge's format once, and find the conversion again.

The folder's name depends on the source's content and on Bridge's version; a marker written last says it is whole. One
rank converts, under a file lock that dies with its process, so two jobs at once make one conversion.
"""

from __future__ import annotations

import importlib.metadata
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError

from launcher.errors import ConfigError, ExperimentError
from launcher.files import disk_note, write_json
from launcher.fingerprint import folder_fingerprint
from launcher.paths import Outputs
from launcher.schema import RunConfig
from megatron_setup.cache import locked

_MARKER = "complete.json"


def converted_folder(config: RunConfig, *, hf_folder: Path) -> Path:
    """Where the conversion of this very checkpoint by this very Bridge lies or will lie."""
    version = importlib.metadata.version("megatron-bridge")
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", config.model.name)
    return Outputs(Path(config.output_dir)).converted(name, digest=f"{folder_fingerprint(hf_folder)}-bridge{version}")


def is_complete(folder: Path) -> bool:
    """True for a conversion that ran to its end."""
    return (folder / _MARKER).is_file()


def newest_iteration(folder: Path) -> Path:
    """The iteration folder with the highest number; Bridge writes iter_0000000 for a conversion."""
    numbered = [(int(m.group(1)), p) for p in folder.iterdir() if (m := re.fullmatch(r"iter_(\d+)", p.name))]
    if not numbered:
        raise ConfigError(f"error: {folder} holds no iter_* folder; it is no Megatron checkpoint")
    return max(numbered)[1]


def import_once(config: RunConfig, *, hf_folder: Path, convert: Callable[[Path, Path], None]) -> Path:
    """The finished conversion's folder; `convert(hf_folder, target)` is called where there is none.

    A killed conversion leaves only a temporary sibling, removed here by the next one.
    Raises ConfigError for a checkpoint that cannot be read, naming it.
    """
    target = converted_folder(config, hf_folder=hf_folder)
    with locked(target):
        if not is_complete(target) or config.model.force_reconvert_from_hf:
            _convert(hf_folder, target=target, convert=convert)
    return target


def _convert(hf_folder: Path, *, target: Path, convert: Callable[[Path, Path], None]) -> None:
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
    write_json(partial / _MARKER, data={"source": str(hf_folder), "fingerprint": folder_fingerprint(hf_folder)})
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)

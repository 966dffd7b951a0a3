"""Which iteration of a Megatron checkpoint is taken, and which folders are not trusted. Torch-free: a login node tells.

Owns the names of what upstream writes. What lies in the files is `megatron_setup.weights`' and `model_config`'s.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from launcher.schema.model import CheckpointFormat

RUN_CONFIG = "run_config.yaml"
METADATA_JSON = "metadata.json"
DCP_METADATA = ".metadata"
TRACKER = "latest_checkpointed_iteration.txt"
RELEASE = "release"
COMPLETE = "complete.json"
"""Ours, written into an iteration's folder after everything else. Bridge has no such mark: it writes the tracker, then
run_config.yaml, bit by bit, and a job killed there leaves a folder that looks like a save."""

_WRITTEN = {
    CheckpointFormat.megatron_bridge: (DCP_METADATA, METADATA_JSON, RUN_CONFIG),
    CheckpointFormat.megatron_lm: (DCP_METADATA, METADATA_JSON),
}
"""What a save writes after its weights, in this order: the last one says that it ended."""


@dataclass(frozen=True, kw_only=True)
class Iteration:
    """The folder of one save that was written to its end. `chosen` says by what, and what was passed over."""

    path: Path
    chosen: str


class NotACheckpointError(Exception):
    """A folder from which nothing can be started: what was found, what is wanted, and overrides that may repair it."""

    def __init__(self, *, found: str, wanted: str, hints: tuple[str, ...] = ()) -> None:
        super().__init__(f"{found}, {wanted} is needed")
        self.found, self.wanted, self.hints = found, wanted, hints


def find_iteration(path: Path, *, format: CheckpointFormat) -> Iteration:
    """The iteration of a checkpoint: the folder itself, or a root's newest.

    Raises NotACheckpointError for a folder that is not there, is of another format, or was not written to its end.
    """
    if not path.is_dir():
        raise NotACheckpointError(found=f"{path}, which is no folder", wanted="the folder of a checkpoint")
    if not any((path / name).exists() for name in (RUN_CONFIG, METADATA_JSON, DCP_METADATA)):
        newest = newest_iteration(path, format=format)
        if newest is None:
            raise NotACheckpointError(found=f"{path}, {_description(path)}", wanted=_wanted(format))
        return newest
    missing = _missing(path, format=format)
    if missing:
        torch_dist = missing == (RUN_CONFIG,)
        raise NotACheckpointError(
            found=f"{path}, a folder without {' and '.join(missing)}",
            wanted=_wanted(format),
            hints=(f"model.pretrained_checkpoint.format={CheckpointFormat.megatron_lm.value}",) if torch_dist else (),
        )
    return Iteration(path=path, chosen=f"{path.name}, named by its path")


def complete_saves(root: Path) -> list[Path]:
    """The iterations of ours that were written to their end and are still whole, oldest first."""
    marked = [path.parent for path in root.glob(f"iter_*/{COMPLETE}")]
    whole = [path for path in marked if not _missing(path, format=CheckpointFormat.megatron_bridge)]
    return sorted(whole, key=_order)


def _order(folder: Path) -> int:
    number = number_of(folder)
    return -1 if number is None else number


def find_save(roots: Sequence[Path], *, asked: Path | None) -> Path | None:
    """The newest finished save in any of `roots` or in `asked`, folders of saves; None where nothing is there or asked.

    An `asked` that no run of ours wrote is read as its tracker says. Raises NotACheckpointError where it has no save.
    """
    folders = roots if asked is None else (*roots, asked)
    ours = [path for root in folders for path in complete_saves(root)]
    if ours or asked is None:
        return max(ours, key=_order, default=None)
    return find_iteration(asked, format=CheckpointFormat.megatron_bridge).path


def newest_save(root: Path) -> Iteration | None:
    """The iteration to resume a run from; None where there is none yet."""
    return newest_iteration(root, format=CheckpointFormat.megatron_bridge)


def newest_iteration(root: Path, *, format: CheckpointFormat) -> Iteration | None:
    """The iteration that the tracker names, else the one with the highest number; None where none is whole.

    A folder that was not written to its end is passed over for the next older one. Bridge writes weights, .metadata,
    metadata.json, the tracker and run_config.yaml, in this order (0.6.2 training/checkpointing.py, save_checkpoint):
    a job killed in between leaves a newest folder, and often a tracker, that are no save. Requeued, it must find the
    save before without a person's help. Bridge's other tracker, latest_train_state.pt, always has the same number and
    needs torch to be read.
    Raises NotACheckpointError for a tracker that holds nonsense or names a folder that is not there.
    """
    folders = _numbered(root)
    names = [folder.name for folder in folders]
    tracked = _tracked(root, folders=folders)
    if tracked is not None:
        folders = folders[folders.index(tracked) :]
    passed_over: list[str] = []
    for folder in folders:
        missing = _missing(folder, format=format)
        if not missing:
            by = TRACKER if tracked == folder else f"the highest number of {len(names)}"
            return Iteration(path=folder, chosen="; ".join([f"{folder.name}, by {by}", *passed_over]))
        passed_over.append(f"{folder.name} passed over, not written to its end: no {' and no '.join(missing)}")
    return None


def _numbered(root: Path) -> list[Path]:
    """iter_* folders, newest first by number (not by spelling: iter_9 is older than iter_10), then `release`."""
    if not root.is_dir():
        return []
    numbered = [(number, p) for p in root.iterdir() if (number := number_of(p)) is not None]
    release = [root / RELEASE] if (root / RELEASE).is_dir() else []
    return [path for _, path in sorted(numbered, reverse=True)] + release


def _tracked(root: Path, *, folders: list[Path]) -> Path | None:
    """The folder that the tracker names; None without a tracker."""
    try:
        text = (root / TRACKER).read_text(encoding="utf-8", errors="replace").strip()
    except FileNotFoundError:
        return None
    if text != RELEASE and not re.fullmatch(r"[0-9]+", text):
        raise NotACheckpointError(found=f"{root / TRACKER} with {text[:40]!r}", wanted=f"a number or {RELEASE} in it")
    for folder in folders:
        if folder.name == text or (text != RELEASE and number_of(folder) == int(text)):
            return folder
    present = ", ".join(folder.name for folder in folders) or "no iteration"
    raise NotACheckpointError(
        found=f"{root / TRACKER} with {text!r} beside {present}", wanted="the folder that the tracker names"
    )


def number_of(folder: Path) -> int | None:
    """The optimizer steps in a folder's name; None for one that is called otherwise (`release`, a copy)."""
    match = re.fullmatch(r"iter_(\d+)", folder.name)
    return int(match.group(1)) if match else None


def _missing(folder: Path, *, format: CheckpointFormat) -> tuple[str, ...]:
    """What a finished save of the format has and this folder lacks."""
    missing = tuple(name for name in _WRITTEN[format] if not (folder / name).is_file())
    if METADATA_JSON in missing or _is_torch_dist(folder / METADATA_JSON):
        return missing
    return (*missing, f"torch_dist in {METADATA_JSON}")


def _is_torch_dist(path: Path) -> bool:
    try:
        config: Any = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return False
    return isinstance(config, dict) and cast(dict[str, Any], config).get("sharded_backend") == "torch_dist"


def _wanted(format: CheckpointFormat) -> str:
    if format is CheckpointFormat.megatron_lm:
        return f"a torch_dist checkpoint ({METADATA_JSON}, {DCP_METADATA}) or a root of iter_* folders of it"
    return f"a Megatron-Bridge checkpoint ({RUN_CONFIG}, {METADATA_JSON}) or a root of iter_* folders of it"


def _description(folder: Path) -> str:
    """What a folder that is no checkpoint holds instead."""
    if folders := _numbered(folder):
        return f"where none of {', '.join(f.name for f in folders)} was written to its end in this format"
    if any(folder.glob("mp_rank_*")):
        return "Megatron-LM's older format (mp_rank_*)"
    if (folder / "config.json").is_file():
        return "a Hugging Face folder (model.hf_path takes it)"
    return "where nothing of a checkpoint lies"

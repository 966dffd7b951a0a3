"""A model's weights from a torch_dist checkpoint, of Megatron-Bridge or Megatron-LM, in any parallel layout.

Owns the checks before a load, each with one error naming file and weight; the load itself is Bridge's.
"""

from __future__ import annotations

import pickle
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from megatron.bridge.training.checkpointing import _generate_model_state_dict, _load_model_weights_from_checkpoint
from megatron.bridge.training.utils.pg_utils import get_pg_collection
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.core import CheckpointingException
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor, apply_factories
from megatron.core.transformer.module import MegatronModule
from megatron.core.utils import get_model_config, unwrap_model
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from launcher.errors import ConfigError
from megatron_setup.iterations import DCP_METADATA

_MEGATRON_LM_MULTIPLE = 128
"""`--make-vocab-size-divisible-by` where a person left it alone; Bridge takes the vocabulary's own largest divisor."""


def load_weights(model: list[MegatronModule], *, iteration: Path) -> None:
    """Load this rank's part of every weight; resharded where the checkpoint was saved in another layout.

    Raises ConfigError naming file and weight where a file is missing or cut off, or where the checkpoint has not the
    weights, the shapes, the vocabulary or the FP8 state of this model. Nothing is loaded then.
    """
    metadata = read_metadata(iteration)
    check_files(iteration, metadata=metadata)
    check_weights(model, iteration=iteration, metadata=metadata)
    with explained(iteration):
        _load_model_weights_from_checkpoint(str(iteration), model)


def read_metadata(iteration: Path) -> Metadata:
    """What lies where in the checkpoint's files. Raises ConfigError where .metadata is missing or damaged."""
    try:
        return FileSystemReader(iteration).read_metadata()
    except (OSError, EOFError, pickle.UnpicklingError, ValueError, AttributeError, IndexError) as error:
        raise ConfigError(
            f"error: {iteration / DCP_METADATA} cannot be read\n  why:    {type(error).__name__}: {error}"
        ) from error


def check_files(iteration: Path, *, metadata: Metadata) -> None:
    """Raise ConfigError for a file that is missing, or ends before a weight that lies in it."""
    sizes: dict[str, int | None] = {}
    for index, info in metadata.storage_data.items():
        path = iteration / info.relative_path
        if info.relative_path not in sizes:
            sizes[info.relative_path] = path.stat().st_size if path.is_file() else None
        size, end = sizes[info.relative_path], info.offset + info.length
        if size is None:
            raise ConfigError(f"error: {path} is missing\n  why:    {index.fqn} lies in it; the copy is not complete")
        if size < end:
            raise ConfigError(
                f"error: {path} is cut off: it has {size} bytes, {index.fqn} ends at {end}\n"
                "  why:    the copy is not complete, or a disk was full"
            )


def check_weights(model: list[MegatronModule], *, iteration: Path, metadata: Metadata) -> None:
    """Raise ConfigError where the checkpoint has not what this rank's part of the model needs, or in another shape."""
    config: Any = get_model_config(model[0])
    stored = metadata.state_dict_metadata
    missing: list[str] = []
    for part in _parts(model, iteration=iteration):
        if isinstance(part, ShardedObject):
            if part.unique_key not in stored:
                missing.append(part.unique_key)
        elif part.key not in stored:
            missing.append(part.key)
        else:
            _check_shape(part, stored=stored[part.key], config=config, iteration=iteration)
    if missing:
        raise ConfigError(_text_of_missing(missing, iteration=iteration))


def _parts(model: list[MegatronModule], *, iteration: Path) -> Iterator[ShardedTensor | ShardedObject]:
    """What Bridge's load will ask the checkpoint for, with the checkpoint's own description of its content."""
    with explained(iteration):
        common = dist_checkpointing.load_common_state_dict(str(iteration))
    content = dist_checkpointing.load_content_metadata(preloaded_state_dict=common)
    chunks = unwrap_model(model)
    parts = _generate_model_state_dict(chunks, {"metadata": content}, pg_collection=get_pg_collection(chunks))
    apply_factories(parts)
    return (part for part in nested_values(parts) if isinstance(part, ShardedTensor | ShardedObject))


def _check_shape(part: ShardedTensor, *, stored: Any, config: Any, iteration: Path) -> None:
    assert isinstance(stored, TensorStorageMetadata), f"{part.key} is no tensor in {iteration}"
    found, wanted = tuple(stored.size), tuple(part.global_shape)
    if found == wanted:
        return
    if part.allow_shape_mismatch and found[1:] == wanted[1:]:
        _check_vocabulary(part.key, stored=stored, config=config, iteration=iteration)
        return
    raise ConfigError(
        f"error: {iteration} does not hold the weights of this model\n"
        f"  why:    {part.key} has the shape {list(found)} in it and {list(wanted)} in the model"
    )


def _check_vocabulary(key: str, *, stored: TensorStorageMetadata, config: Any, iteration: Path) -> None:
    """The rows may differ by padding only.

    megatron-core lets embeddings of any number of rows in (`allow_shape_mismatch`), because padding depends on TP: a
    checkpoint of another vocabulary loads without a word, and new tokens keep the random rows of the initialisation.
    """
    ranks = len({chunk.offsets[0] for chunk in stored.chunks})
    multiple = max(config.make_vocab_size_divisible_by, _MEGATRON_LM_MULTIPLE)
    rows, most = stored.size[0], config.vocab_size + multiple * ranks - 1
    if config.vocab_size <= rows <= most:
        return
    raise ConfigError(
        f"error: {iteration} has another vocabulary\n"
        f"  why:    {key} has {rows} rows in it; a vocabulary of {config.vocab_size}, padded to a multiple of "
        f"{multiple} on each of {ranks} rank(s), has {config.vocab_size} to {most}"
    )


def _text_of_missing(missing: list[str], *, iteration: Path) -> str:
    more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
    if all("._extra_state" in key for key in missing):
        return (
            f"error: {iteration} has no FP8 state\n"
            f"  why:    {missing[0]} is not in it{more}: layers that keep no scaling factors wrote it, and upstream's "
            "load wants what the model's layers keep"
        )
    return (
        f"error: {iteration} does not hold the weights of this model\n"
        f"  why:    {missing[0]} from model not in state dict{more}"
    )


@contextmanager
def explained(iteration: Path) -> Generator[None]:
    """Loads inside raise ConfigError naming folder and weight where the two sides have other weights or shapes."""
    try:
        yield
    except CheckpointException as error:
        reason, _ = next(iter(error.failures.values()))
        raise ConfigError(_text_of(str(reason.args[0]), iteration=iteration)) from error
    except CheckpointingException as error:
        raise ConfigError(_text_of(str(error), iteration=iteration)) from error


def _text_of(reason: str, *, iteration: Path) -> str:
    """Upstream appends every key of the checkpoint to its reason."""
    return f"error: {iteration} does not hold the weights of this model\n  why:    {reason.partition(': [')[0]}"

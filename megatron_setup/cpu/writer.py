"""The process that writes saves in the background, on the CPU platform: it too must not look for a GPU."""

from __future__ import annotations

from typing import Any

from megatron_setup.cpu.replacement import Replacement, apply_replacements
from megatron_setup.cpu.table import TORCH
from megatron_setup.writer import die_with_parent

_COUNT = Replacement(
    targets=("torch.cuda.device_count",),
    by="megatron_setup.cpu.writer.one_device",
    why="the loop divides its rank by the number of GPUs",
)


def one_device() -> int:
    """The CPU."""
    return 1


def async_loop(*arguments: Any) -> None:
    """megatron-core's loop, after the names of torch.cuda are replaced: a spawned process has none of ours."""
    die_with_parent()
    apply_replacements((*TORCH, _COUNT))
    from megatron.core.dist_checkpointing.strategies.async_utils import PersistentAsyncCaller

    PersistentAsyncCaller.async_loop(*arguments)

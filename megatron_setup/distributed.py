"""Process groups: joining the world, Megatron's model-parallel groups, and leaving both without a trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
from megatron.core import parallel_state
from torch.distributed import HashStore, Store

from launcher.schema import PlatformKind, RunConfig

_TIMEOUT = timedelta(minutes=30)


def backend_of(config: RunConfig) -> str:
    """gloo on the CPU platform, NCCL elsewhere."""
    return "gloo" if config.platform.kind is PlatformKind.cpu else "nccl"


def join_world(config: RunConfig, *, store: Store, rank: int, world_size: int) -> None:
    """Initialise torch.distributed over the run's store; on a GPU this rank's device has been set."""
    torch.distributed.init_process_group(
        backend_of(config), store=store, rank=rank, world_size=world_size, timeout=_TIMEOUT
    )


@contextmanager
def world_of_one(config: RunConfig) -> Iterator[None]:
    """A world with this process alone, for work that one rank does before the ranks meet (a conversion)."""
    torch.distributed.init_process_group(backend_of(config), store=HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        leave_world()


def leave_world() -> None:
    """Drop Megatron's groups and torch.distributed; harmless where neither was set up."""
    if parallel_state.is_initialized():
        parallel_state.destroy_model_parallel()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()

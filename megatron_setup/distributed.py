"""Process groups: joining the world, Megatron's model-parallel groups, and leaving both without a trace."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.managers import BaseProxy
from typing import Any, Literal

import torch
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.strategies import async_utils, filesystem_async
from megatron.core.num_microbatches_calculator import destroy_num_microbatches_calculator
from megatron.core.rerun_state_machine import destroy_rerun_state_machine
from megatron.core.resharding.refit import clear_all_caches
from torch.distributed import HashStore, Store

from launcher.schema import PlatformKind, RunConfig

_TIMEOUT = timedelta(minutes=30)


def backend_of(config: RunConfig) -> Literal["gloo", "nccl"]:
    """gloo on the CPU platform, NCCL elsewhere."""
    return "gloo" if config.platform.kind is PlatformKind.cpu else "nccl"


def join_world(config: RunConfig, *, store: Store, rank: int, world_size: int) -> None:
    """Initialise torch.distributed over the run's store; on a GPU this rank's device has been set."""
    torch.distributed.init_process_group(
        backend_of(config), store=store, rank=rank, world_size=world_size, timeout=_TIMEOUT
    )


@contextmanager
def world_of_one(config: RunConfig) -> Generator[None]:
    """A world with this process alone, for work that one rank does before the ranks meet (a conversion)."""
    torch.distributed.init_process_group(backend_of(config), store=HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        leave_world()


def leave_world() -> None:
    """Drop background writers, Megatron's groups and counters, and torch.distributed; harmless where there are none.

    A writer left alone outlives its rank: fifty of them, each with torch imported, once ate a machine. And it keeps
    the number of its last call: ranks that joined a second world with other numbers stopped at "Unmatched async
    calls". A save that still runs is given up here; `Saves.close` is what waits for it.
    """
    _end_writers()
    clear_all_caches()  # of weight refits: plans for other groups, and a group that is about to go
    destroy_num_microbatches_calculator()
    destroy_rerun_state_machine()
    if parallel_state.is_initialized():
        parallel_state.destroy_model_parallel()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _end_writers() -> None:
    queue: Any = async_utils.AsyncCallsQueue
    caller: Any = async_utils.PersistentAsyncCaller  # its annotations say that a process is always there
    if queue._persistent_caller is not None:
        queue._persistent_caller.close(abort=True)
        queue._persistent_caller = None
    process = caller._persistent_process  # started, and never given a save
    if process is not None:
        process.kill()
        process.join()
        caller._persistent_process = None
    if isinstance(filesystem_async._results_queue, BaseProxy):  # pyright: ignore[reportPrivateUsage]
        filesystem_async._results_queue = None  # pyright: ignore[reportPrivateUsage]  its manager ends with it

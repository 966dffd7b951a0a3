"""Leaving a world: the next one in the same process starts as the first did, and no process stays behind."""

from dataclasses import dataclass

import pytest

from tests.worlds import run_world

pytestmark = pytest.mark.usefixtures("cpu_platform")


@dataclass(frozen=True, kw_only=True)
class World:
    """The number of the writer's last call when the world began, and whether a writer ran in it."""

    last_call: int
    has_writer: bool


@dataclass(frozen=True, kw_only=True)
class Trace:
    """What is left of the worlds when all were left."""

    worlds: list[World]
    num_processes: int
    groups: bool
    process_group: bool


def _two_worlds() -> Trace:
    import multiprocessing

    import torch
    from megatron.core import parallel_state
    from megatron.core.dist_checkpointing.strategies.async_utils import AsyncCallsQueue

    from launcher.compose import compose
    from megatron_setup.distributed import leave_world, world_of_one

    config, worlds = compose([]).config, list[World]()
    leave_world()  # before there is one
    for _ in range(2):
        with world_of_one(config):
            parallel_state.initialize_model_parallel()
            caller = AsyncCallsQueue(persistent=True)._get_async_caller()
            AsyncCallsQueue.warmup_persistent_caller(0, mp_mode="fork")
            worlds.append(World(last_call=caller.cur_idx, has_writer=bool(multiprocessing.active_children())))
            caller.cur_idx = 5  # as after six saves
    leave_world()  # and after the last
    return Trace(
        worlds=worlds,
        num_processes=len(multiprocessing.active_children()),
        groups=parallel_state.is_initialized(),
        process_group=torch.distributed.is_initialized(),
    )


def test_a_world_is_left_without_a_trace() -> None:
    (trace,) = run_world(_two_worlds, num_ranks=1, joined=False)
    assert trace.worlds == [World(last_call=-1, has_writer=True)] * 2
    assert trace == Trace(worlds=trace.worlds, num_processes=0, groups=False, process_group=False)

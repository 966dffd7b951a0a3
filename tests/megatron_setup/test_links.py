"""The first all-reduce of a run: right, wrong by one rank, missed by one rank; each on real gloo ranks."""

import os
import socket
import time

import pytest
import torch

from launcher.compose import compose
from launcher.errors import NodeError
from megatron_setup import links
from tests.worlds import run_world

pytestmark = pytest.mark.usefixtures("cpu_platform")


def _check(*, limit_s: float) -> str:
    """What `check_links` says on this rank."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = torch.distributed.distributed_c10d._get_default_store()
    try:
        links.check_links(compose([]).config, store=store, rank=rank, world_size=world_size, limit_s=limit_s)
    except NodeError as error:
        return str(error)
    return "fine"


def _check_with_rank_1_wrong() -> str:
    """Rank 1 sends 9 where it should send 2."""
    if os.environ["RANK"] != "1":
        return _check(limit_s=30.0)
    torch.distributed.distributed_c10d._get_default_store().set(links._key(1), "node7")
    rows = torch.zeros(3, links._NUMBERS // 3, dtype=torch.int32)
    rows[1, -1] = 9
    torch.distributed.all_reduce(rows)
    return "wrong"


def _check_without_rank_1() -> str:
    """Rank 1 is there and never reduces; both leave without waiting for each other."""
    from megatron_setup.distributed import leave_world

    torch.distributed.init_process_group("gloo")
    said = _check(limit_s=1.0) if os.environ["RANK"] != "1" else "elsewhere"
    time.sleep(3.0 if said == "elsewhere" else 0.0)
    leave_world()
    return said


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_ranks_that_reach_each_other(num_ranks: int) -> None:
    assert run_world(_check, num_ranks=num_ranks, limit_s=30.0) == ["fine"] * num_ranks


def test_a_wrong_sum_names_the_rank_and_its_host() -> None:
    said = run_world(_check_with_rank_1_wrong, num_ranks=3)
    text = f"error: an all-reduce on {socket.gethostname()} is wrong in what came from node7 (rank 1)"
    assert said == [text, "wrong", text]


def test_a_rank_that_does_not_come_is_named() -> None:
    said = run_world(_check_without_rank_1, num_ranks=2, joined=False)
    assert said == [
        f"error: no all-reduce on {socket.gethostname()} within 1 s: rank 1 did not come to it",
        "elsewhere",
    ]

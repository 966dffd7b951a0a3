"""The test harness for worlds of ranks: results by rank, the first failure, a hang, and no process left."""

import multiprocessing
import os
import signal
import time

import pytest
import torch
import torch.distributed as dist

from tests.worlds import RankError, run_world


def _sum_over_ranks(*, offset: int) -> tuple[int, int, float]:
    total = torch.tensor(float(dist.get_rank() + offset))
    dist.all_reduce(total)
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), total.item()


def test_results_come_by_rank() -> None:
    assert run_world(_sum_over_ranks, num_ranks=3, offset=10) == [(0, 3, 33.0), (1, 3, 33.0), (2, 3, 33.0)]


def _fail_on_rank_1() -> None:
    if dist.get_rank() == 1:
        raise ValueError("this is the cause")
    dist.barrier()


def test_the_first_failing_rank_is_reported_and_no_process_is_left() -> None:
    with pytest.raises(RankError, match=r"rank 1 of 2\n(.|\n)*ValueError: this is the cause"):
        run_world(_fail_on_rank_1, num_ranks=2)
    assert not multiprocessing.active_children()


def _die_on_rank_0() -> None:
    if dist.get_rank() == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def test_a_killed_rank_is_reported() -> None:
    with pytest.raises(RankError, match="rank 0 of 2\ndied without a word, exit code -9"):
        run_world(_die_on_rank_0, num_ranks=2)
    assert not multiprocessing.active_children()


def _hang_on_rank_1() -> None:
    if dist.get_rank() == 1:
        time.sleep(60)


def test_a_hang_names_the_rank_and_prints_its_stack(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TimeoutError, match=r"ranks \[0, 1\] of 2 hang"):
        run_world(_hang_on_rank_1, num_ranks=2, timeout_s=3)
    assert "_hang_on_rank_1" in capfd.readouterr().err
    assert not multiprocessing.active_children()

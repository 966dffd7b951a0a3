"""What an all-reduce of partial sums, as tensor parallelism needs it, does to a token's bits, on 2, 4 and 8 gloo ranks.

Two ranks have one order of addition and hide what more ranks show. Parts gathered and added by rank have one, too.
"""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from tests.worlds import run_world

HIDDEN, BATCH = 256, 512
SIZES = (1, 3, 24, 64)
"""Rows of a decode step, against the same rows within a batch."""


def _partial(token: int, *, rank: int) -> torch.Tensor:
    """A rank's share of a token's row; the same wherever the token stands."""
    return torch.randn(HIDDEN, generator=torch.Generator().manual_seed(1000 * rank + token))


def _all_reduce(part: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(part)
    return part


def _gather_and_add(part: torch.Tensor) -> torch.Tensor:
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, part)
    total = parts[0]
    for each in parts[1:]:
        total = total + each
    return total


def _differing_rows(reduce: Callable[[torch.Tensor], torch.Tensor]) -> dict[int, int]:
    """How many of the first rows have other bits alone than in the batch, by the number of rows alone."""
    torch.set_num_threads(1)
    rank = dist.get_rank()
    everyone = torch.stack([_partial(token, rank=rank) for token in range(BATCH)])
    together = reduce(everyone.clone())
    return {size: int((reduce(everyone[:size].clone()) != together[:size]).any(1).sum()) for size in SIZES}


@pytest.mark.usefixtures("cpu_platform")
@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_parts_gathered_and_added_by_rank_have_one_order(num_ranks: int) -> None:
    for found in run_world(_differing_rows, num_ranks=num_ranks, reduce=_gather_and_add):
        assert found == dict.fromkeys(SIZES, 0)


@pytest.mark.usefixtures("cpu_platform")
def test_an_all_reduce_of_two_ranks_has_one_order() -> None:
    for found in run_world(_differing_rows, num_ranks=2, reduce=_all_reduce):
        assert found == dict.fromkeys(SIZES, 0)


@pytest.mark.usefixtures("cpu_platform")
@pytest.mark.parametrize("num_ranks", [4, 8])
def test_an_all_reduce_of_more_ranks_depends_on_the_batch(num_ranks: int) -> None:
    for found in run_world(_differing_rows, num_ranks=num_ranks, reduce=_all_reduce):
        assert all(found.values())

"""Sums over 2, 3, 4 and 8 gloo ranks: what an all-reduce does to a row's bits, and that ours leaves them alone.

NCCL's half, on ranks that share a GPU, is tests/gpu/reduction_order.py.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from launcher.patches import applied
from tests.worlds import run_world
from zero_kl.kernels import reduction

pytestmark = pytest.mark.usefixtures("cpu_platform")

HIDDEN, BATCH = 256, 512
SIZES = (1, 3, 24, 64)
"""Rows of a decode step, against the same rows within a batch."""

Reduce = Callable[[Tensor], Tensor]


def _partial(token: int, *, rank: int) -> Tensor:
    """A rank's share of a token's row; the same wherever the token stands."""
    return torch.randn(HIDDEN, generator=torch.Generator().manual_seed(1000 * rank + token))


def _all_reduce(part: Tensor) -> Tensor:
    dist.all_reduce(part)
    return part


def _ours(part: Tensor) -> Tensor:
    return reduction.ordered_all_reduce(part, group=_world())


def _world() -> Any:
    return dist.group.WORLD


def _everyone(rank: int, *, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.stack([_partial(token, rank=rank) for token in range(BATCH)]).to(dtype)


def _differing_rows(reduce: Reduce, *, dtype: torch.dtype = torch.float32) -> dict[int, int]:
    """How many of the first rows have other bits alone than in the batch, by the number of rows alone."""
    torch.set_num_threads(1)
    everyone = _everyone(dist.get_rank(), dtype=dtype)
    together = reduce(everyone.clone())
    return {size: int((reduce(everyone[:size].clone()) != together[:size]).any(1).sum()) for size in SIZES}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("num_ranks", [2, 3, 4, 8])
def test_ours_has_one_order(num_ranks: int, dtype: torch.dtype) -> None:
    for found in run_world(_differing_rows, num_ranks=num_ranks, reduce=_ours, dtype=dtype):
        assert found == dict.fromkeys(SIZES, 0)


def test_an_all_reduce_of_two_ranks_has_one_order() -> None:
    for found in run_world(_differing_rows, num_ranks=2, reduce=_all_reduce):
        assert found == dict.fromkeys(SIZES, 0)


@pytest.mark.parametrize("num_ranks", [4, 8])
def test_an_all_reduce_of_more_ranks_depends_on_the_batch(num_ranks: int) -> None:
    for found in run_world(_differing_rows, num_ranks=num_ranks, reduce=_all_reduce):
        assert all(found.values())


def _sums(dtype: torch.dtype) -> dict[str, bool]:
    """Ours against the sum by hand, on every rank; with sequence parallelism its rows; what was given is unchanged."""
    torch.set_num_threads(1)
    rank, ranks, group = dist.get_rank(), dist.get_world_size(), _world()
    part = _everyone(rank, dtype=dtype)
    given = part.clone()
    total = _everyone(0, dtype=dtype).float()
    for other in range(1, ranks):
        total = total + _everyone(other, dtype=dtype).float()
    wanted = total.to(dtype)
    sizes = [BATCH - 7 * (ranks - 1), *[7] * (ranks - 1)]
    mine = BATCH // ranks * rank
    uneven = reduction.ordered_reduce_scatter(part, group=group, rows=sizes)
    return {
        "all-reduce": torch.equal(reduction.ordered_all_reduce(part, group=group), wanted),
        "odd shape": torch.equal(reduction.ordered_all_reduce(part[:5, :3].t(), group=group), wanted[:5, :3].t()),
        "reduce-scatter": torch.equal(
            reduction.ordered_reduce_scatter(part, group=group), wanted[mine : mine + BATCH // ranks]
        ),
        "uneven": torch.equal(uneven, wanted.split(sizes)[rank]),
        "Transformer Engine's": torch.equal(reduction._te_allreduce(part, group)[0], wanted),
        "Transformer Engine's rows": torch.equal(
            reduction._te_reduce_scatter(part, group)[0], wanted[mine : mine + BATCH // ranks]
        ),
        "given": torch.equal(part, given),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_it_is_the_sum_by_rank_in_fp32(num_ranks: int, dtype: torch.dtype) -> None:
    for found in run_world(_sums, num_ranks=num_ranks, dtype=dtype):
        assert all(found.values()), found


def _through_megatron() -> dict[str, bool]:
    """megatron-core's regions, forward and backward, are ours while the rows are applied, and its own afterwards."""
    from megatron.core.tensor_parallel import mappings

    torch.set_num_threads(1)
    group = _world()

    def sums(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        leaf = rows.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(mappings.copy_to_tensor_model_parallel_region(leaf, group), leaf, rows)
        reduced = mappings.reduce_from_tensor_model_parallel_region(rows.clone(), group)
        return reduced, mappings.reduce_scatter_to_sequence_parallel_region(rows, group=group), gradient

    part = _everyone(dist.get_rank())
    wanted, rank = reduction.ordered_all_reduce(part, group=group), dist.get_rank()
    with applied(reduction.MCORE_PATCHES):
        reduced, scattered, gradient = sums(part)
    return {
        "reduced": torch.equal(reduced, wanted),
        "scattered": torch.equal(scattered, wanted.chunk(dist.get_world_size())[rank]),
        "gradient": torch.equal(gradient, wanted),
        "restored": not torch.equal(sums(part)[0], wanted),
    }


def test_megatrons_regions_use_it_while_it_is_applied() -> None:
    for found in run_world(_through_megatron, num_ranks=4):
        assert all(found.values()), found

"""The ordered sums against plain torch, on the CPU: values, gradients, and independence of the batch."""

import pytest
import torch

from zero_kl.kernels.moe_rows import combine, rows_of_tokens, spread, sum_rows


def _routing(num_tokens: int, k: int, num_experts: int) -> torch.Tensor:
    """The token of each row in expert order, as megatron-core's permute returns it."""
    generator = torch.Generator().manual_seed(0)
    chosen = torch.rand(num_tokens, num_experts, generator=generator).topk(k).indices
    routing_map = torch.zeros(num_tokens, num_experts, dtype=torch.bool).scatter_(1, chosen, True)
    return routing_map.T.nonzero()[:, 1]


@pytest.mark.parametrize(("num_tokens", "k"), [(1, 1), (7, 2), (33, 4)])
def test_every_token_finds_its_rows(num_tokens: int, k: int) -> None:
    sorted_indices = _routing(num_tokens, k, num_experts=8)
    index = rows_of_tokens(sorted_indices, num_tokens=num_tokens)
    assert index.shape == (num_tokens, k)
    assert torch.equal(sorted_indices[index], torch.arange(num_tokens)[:, None].expand(-1, k))
    assert (index.diff(dim=1) > 0).all()


def test_dropped_tokens_are_refused() -> None:
    with pytest.raises(AssertionError, match="dropped tokens"):
        rows_of_tokens(torch.tensor([0, 1, 1]), num_tokens=2)


def test_combine_is_the_fp32_sum_in_order() -> None:
    sorted_indices = _routing(16, 4, num_experts=8)
    rows = torch.randn(64, 32, dtype=torch.bfloat16)
    out = combine(rows, sorted_indices=sorted_indices, num_tokens=16)
    for token in range(16):
        total = torch.zeros(32)
        for row in rows[sorted_indices == token]:
            total = total + row.float()
        assert torch.equal(out[token], total.bfloat16())


def test_a_token_does_not_depend_on_the_others() -> None:
    sorted_indices = _routing(16, 4, num_experts=8)
    rows = torch.randn(64, 32)
    out = combine(rows, sorted_indices=sorted_indices, num_tokens=16)
    for token in range(16):
        alone = sum_rows(rows[sorted_indices == token], index=torch.arange(4)[None])
        assert torch.equal(alone[0], out[token])


def test_gradients_are_those_of_index_select_and_index_add() -> None:
    sorted_indices = _routing(12, 2, num_experts=4)
    tokens = torch.randn(12, 8, requires_grad=True)
    weight = torch.randint(-50, 50, (24, 8)).float()  # integers: every order of addition is exact

    def round_trip(x: torch.Tensor) -> torch.Tensor:
        return combine(spread(x, sorted_indices=sorted_indices) * weight, sorted_indices=sorted_indices, num_tokens=12)

    (ours,) = torch.autograd.grad(round_trip(tokens).sum(), tokens)
    assert torch.equal(ours, torch.zeros(12, 8).index_add(0, sorted_indices, weight))

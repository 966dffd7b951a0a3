"""The ordered sums against plain torch, on the CPU: values, gradients, and independence of the batch."""

from collections.abc import Callable

import pytest
import torch

from zero_kl.kernels.moe_rows import Rows, combine, full_rows, packed_rows, spread, spread_probs, sum_rows

BOTH = pytest.mark.parametrize("rows_of", [packed_rows, full_rows])
RowsOf = Callable[..., Rows]


def _routing(num_tokens: int, *, k: int, num_experts: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    chosen = torch.rand(num_tokens, num_experts, generator=generator).topk(k).indices
    return torch.zeros(num_tokens, num_experts, dtype=torch.bool).scatter_(1, chosen, True)


@pytest.mark.parametrize(("num_tokens", "k"), [(1, 1), (7, 2), (33, 4)])
def test_packed_rows_are_in_the_order_of_megatrons_permute(num_tokens: int, k: int) -> None:
    routing_map = _routing(num_tokens, k=k, num_experts=8)
    token_of_row = routing_map.T.nonzero()[:, 1]
    rows = packed_rows(routing_map, k=k)
    assert rows.num_rows == token_of_row.numel()
    assert torch.equal(token_of_row[rows.index], torch.arange(num_tokens)[:, None].expand(-1, k))
    assert (rows.index.diff(dim=1) > 0).all()


@BOTH
def test_a_row_belongs_to_an_expert_of_its_token(rows_of: RowsOf) -> None:
    routing_map = _routing(33, k=4, num_experts=8)
    rows = rows_of(routing_map, k=4)
    assert routing_map.gather(1, rows.experts).all()
    assert (rows.experts.diff(dim=1) > 0).all()
    assert rows.index.unique().numel() == rows.index.numel()
    assert rows.index.max() < rows.num_rows


def test_full_rows_do_not_depend_on_the_routing() -> None:
    rows = full_rows(_routing(16, k=2, num_experts=4), k=2)
    assert rows.num_rows == 64
    assert torch.equal(rows.index, rows.experts * 16 + torch.arange(16)[:, None])


@BOTH
def test_combine_is_the_fp32_sum_in_the_order_of_the_experts(rows_of: RowsOf) -> None:
    rows = rows_of(_routing(16, k=4, num_experts=8), k=4)
    values = torch.randn(rows.num_rows, 32, dtype=torch.bfloat16)
    out = combine(values, index=rows.index)
    for token in range(16):
        total = torch.zeros(32)
        for row in rows.index[token]:
            total = total + values[row].float()
        assert torch.equal(out[token], total.bfloat16())


def test_packed_and_full_rows_give_the_same_sums() -> None:
    routing_map = _routing(16, k=4, num_experts=8)
    tokens, probs = torch.randn(16, 32), torch.rand(16, 8)
    outputs = []
    for rows in (packed_rows(routing_map, k=4), full_rows(routing_map, k=4)):
        weighted = spread(tokens, rows=rows) * spread_probs(probs, rows=rows)[:, None]
        outputs.append(combine(weighted, index=rows.index))
    assert torch.equal(*outputs)


def test_a_token_does_not_depend_on_the_others() -> None:
    rows = packed_rows(_routing(16, k=4, num_experts=8), k=4)
    values = torch.randn(rows.num_rows, 32)
    out = combine(values, index=rows.index)
    for token in range(16):
        alone = sum_rows(values[rows.index[token]], index=torch.arange(4)[None])
        assert torch.equal(alone[0], out[token])


def test_rows_of_nobody_are_zero() -> None:
    rows = full_rows(_routing(4, k=1, num_experts=4), k=1)
    out = spread(torch.ones(4, 2), rows=rows)
    assert out.sum() == 8
    assert spread_probs(torch.ones(4, 4), rows=rows).sum() == 4


@BOTH
def test_gradients_are_those_of_plain_torch(rows_of: RowsOf) -> None:
    routing_map = _routing(12, k=2, num_experts=4)
    rows = rows_of(routing_map, k=2)
    # integers: every order of addition is exact
    weight = torch.randint(-50, 50, (rows.num_rows, 8)).float()
    tokens = torch.randint(-9, 9, (12, 8)).float().requires_grad_()
    probs = torch.randint(-9, 9, (12, 4)).float().requires_grad_()

    def ours() -> torch.Tensor:
        weighted = spread(tokens, rows=rows) * spread_probs(probs, rows=rows)[:, None] * weight
        return combine(weighted, index=rows.index)

    def plain() -> torch.Tensor:
        each = torch.stack([weight[rows.index[:, i]] * probs.gather(1, rows.experts[:, i : i + 1]) for i in range(2)])
        return (each * tokens).sum(0)

    assert torch.equal(ours(), plain())
    for mine, torchs in zip(
        torch.autograd.grad(ours().square().sum(), (tokens, probs)),
        torch.autograd.grad(plain().square().sum(), (tokens, probs)),
        strict=True,
    ):
        assert torch.equal(mine, torchs)

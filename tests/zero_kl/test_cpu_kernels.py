"""The batch-invariant CPU kernels: bits that do not depend on the batch, values that are right, and restoration."""

import threading
from collections.abc import Callable

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention, silu

from zero_kl.cpu_kernels import attention, batch_invariant

type Function = Callable[[torch.Tensor], torch.Tensor]

SHAPES = [(37, 64, 96), (130, 64, 384), (65, 1000, 77), (33, 7, 5), (40, 130, 4), (40, 33, 1)]
"""Rows, depth, columns. The last three are where MKL's own tile is not enough."""


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _rows_that_change(function: Function, rows: torch.Tensor) -> int:
    """How many of the rows get other bits when computed among 1, 2 or 17 rows instead of all."""
    together = function(rows)
    changed = 0
    for size in (1, 2, 17):
        for start in range(len(rows) - size + 1):
            part = function(rows[start : start + size].clone())
            changed += int((part != together[start : start + size]).any(-1).sum())
    return changed


@pytest.mark.parametrize("transposed", [False, True], ids=["plain", "transposed"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_row_of_a_product_does_not_depend_on_the_others(
    shape: tuple[int, int, int], transposed: bool, dtype: torch.dtype
) -> None:
    num_rows, depth, columns = shape
    weight = (_random(columns, depth, seed=1).T if transposed else _random(depth, columns, seed=1)).to(dtype)
    bias = _random(columns, seed=2).to(dtype)
    rows = _random(num_rows, depth).to(dtype)
    with batch_invariant():
        assert _rows_that_change(lambda part: part @ weight, rows) == 0
        assert _rows_that_change(lambda part: torch.addmm(bias, part, weight), rows) == 0


def test_torchs_own_product_does_depend_on_them() -> None:
    weight = _random(96, 64, seed=1).T
    assert _rows_that_change(lambda part: part @ weight, _random(37, 64)) > 0


@pytest.mark.parametrize("function", [torch.sigmoid, silu], ids=["sigmoid", "silu"])
def test_an_element_does_not_depend_on_its_place(function: Function) -> None:
    column = _random(301, 1)
    assert _rows_that_change(function, column) > 0
    with batch_invariant():
        assert _rows_that_change(function, column) == 0


def test_topk_is_in_order_with_and_without_gradients() -> None:
    logits = _random(200, 16)
    with batch_invariant():
        values, indices = torch.topk(logits, 4, dim=1, sorted=False)
    expected = torch.topk(logits, 4, dim=1, sorted=True)
    assert torch.equal(values, expected.values)
    assert torch.equal(indices, expected.indices)


def test_the_values_are_torchs() -> None:
    left, right, bias = _random(50, 70), _random(70, 30, seed=1), _random(30, seed=2)

    def values() -> list[torch.Tensor]:
        return [
            left @ right,
            torch.addmm(bias, left, right),
            torch.addmm(bias, left, right, beta=0.5, alpha=2.0),
            left[:0] @ right,
            torch.sigmoid(left),
            silu(left),
        ]

    expected = values()
    with batch_invariant():
        for mine, torchs in zip(values(), expected, strict=True):
            torch.testing.assert_close(mine, torchs)


def test_training_keeps_the_bits_and_has_the_right_gradients() -> None:
    weight = _random(48, 64, seed=1).requires_grad_()
    rows = _random(37, 64).requires_grad_()

    def gradients() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.autograd.grad(silu(rows @ weight.T).square().sum(), (rows, weight))

    def input_gradient(part: torch.Tensor) -> torch.Tensor:
        part = part.detach().requires_grad_()
        return torch.autograd.grad((part @ weight.T).square().sum(), part)[0]

    expected = gradients()
    with torch.no_grad(), batch_invariant():
        without_gradients = rows @ weight.T
    with batch_invariant():
        assert torch.equal(rows @ weight.T, without_gradients)
        assert _rows_that_change(lambda part: (part @ weight.T).detach(), rows.detach()) == 0
        assert _rows_that_change(input_gradient, rows.detach()) == 0
        for mine, torchs in zip(gradients(), expected, strict=True):
            torch.testing.assert_close(mine, torchs)


def _is_on() -> bool:
    weight = _random(96, 64, seed=1).T
    return _rows_that_change(lambda part: part @ weight, _random(37, 64)) == 0


def test_the_kernels_are_restored_and_can_be_used_again() -> None:
    before = _random(37, 64) @ _random(64, 96, seed=1)
    for _ in range(2):
        with batch_invariant():
            assert _is_on()
            with batch_invariant():
                assert _is_on()
            assert _is_on(), "leaving an inner context must not restore"
        assert not _is_on()
    assert torch.equal(_random(37, 64) @ _random(64, 96, seed=1), before)


def test_the_kernels_are_restored_after_an_exception() -> None:
    with pytest.raises(ZeroDivisionError), batch_invariant():
        assert _is_on()
        1 / 0  # noqa: B018
    assert not _is_on()


def test_the_kernels_hold_for_other_threads() -> None:
    found: list[bool] = []
    with batch_invariant():
        thread = threading.Thread(target=lambda: found.append(_is_on()))
        thread.start()
        thread.join()
    assert found == [True]


def _query_key_value(num_tokens: int, *, head_dim: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Two sequences, four heads, two groups, as slices of one tensor (as a fused projection leaves them)."""
    fused = _random(num_tokens, 2, 8, head_dim).to(dtype)
    return list(fused.split([4, 2, 2], dim=2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("head_dim", [8, 16, 20])
def test_a_decode_step_has_the_bits_of_the_full_forward(head_dim: int, dtype: torch.dtype) -> None:
    num_tokens = 100
    query, key, value = _query_key_value(num_tokens, head_dim=head_dim, dtype=dtype)
    full = attention(query, key, value, scale=0.25, query_positions=torch.arange(num_tokens))
    for n in range(1, num_tokens + 1):
        cached = (key[:n].clone(), value[:n].clone())
        step = attention(query[n - 1 : n].clone(), *cached, scale=0.25, query_positions=torch.tensor([n - 1]))
        assert torch.equal(step[0], full[n - 1])
    for n in (1, 16, 17, 33, 64):
        prefix = (t[:n, :1].clone() for t in (query, key, value))
        assert torch.equal(attention(*prefix, scale=0.25, query_positions=torch.arange(n)), full[:n, :1])


def test_attention_has_the_values_and_gradients_of_torchs_own() -> None:
    num_tokens = 70
    inputs = [t.clone().requires_grad_() for t in _query_key_value(num_tokens, head_dim=16, dtype=torch.float32)]
    mine = attention(*inputs, scale=0.25, query_positions=torch.arange(num_tokens))
    rows = (t.permute(1, 2, 0, 3) for t in inputs)
    torchs = scaled_dot_product_attention(*rows, is_causal=True, scale=0.25, enable_gqa=True).permute(2, 0, 1, 3)
    torch.testing.assert_close(mine, torchs)
    weight = _random(*mine.shape, seed=3)
    gradients = [torch.autograd.grad((out * weight).sum(), inputs, retain_graph=True) for out in (mine, torchs)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)

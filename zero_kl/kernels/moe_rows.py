"""MoE permute and unpermute whose sums over a token's experts have one order, forward and backward.

megatron-core 0.19.2 combines expert outputs with `scatter_add_` in BF16: atomics add a token's top-k rows in the order
they happen to arrive, so the result is not even equal from run to run (16 experts, top-4, hidden 2048: 0.7 % of layer
0's outputs differ). The backward of its permute is the same sum. Here both sums run over k in one thread, in fp32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_BLOCK = 1024


def rows_of_tokens(sorted_indices: Tensor, *, num_tokens: int) -> Tensor:
    """[num_tokens, k]: where in the permuted order each token's rows are, ascending.

    sorted_indices: [num_tokens * k], the token of each permuted row. Every token has the same k (no token is dropped).
    """
    k, remainder = divmod(sorted_indices.numel(), max(num_tokens, 1))
    assert remainder == 0, f"{sorted_indices.numel()} rows for {num_tokens} tokens: dropped tokens are not supported"
    return sorted_indices.argsort(stable=True).view(num_tokens, k)


def sum_rows(rows: Tensor, *, index: Tensor) -> Tensor:
    """out[t] = rows[index[t, 0]] + rows[index[t, 1]] + ..., added in this order in fp32, in `rows`' dtype.

    rows: [num_rows, hidden]; index: [num_tokens, k]; out: [num_tokens, hidden].
    """
    if rows.is_cuda:
        return _sum_rows_triton(rows.contiguous(), index=index)
    total = rows[index[:, 0]].float()
    for column in index.unbind(1)[1:]:
        total += rows[column]
    return total.to(rows.dtype)


def _sum_rows_triton(rows: Tensor, *, index: Tensor) -> Tensor:
    from zero_kl.kernels.sum_rows_triton import sum_rows_kernel

    num_tokens, k = index.shape
    hidden = rows.shape[1]
    out = rows.new_empty(num_tokens, hidden)
    if num_tokens:
        grid = (num_tokens, -(-hidden // _BLOCK))
        kernel: Any = sum_rows_kernel[grid]
        kernel(rows, index.contiguous(), out, hidden, k, BLOCK=_BLOCK)
    return out


class _Combine(torch.autograd.Function):
    """Forward: the ordered sum. Backward: every row gets its token's gradient."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sorted_indices: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(sorted_indices)
        return sum_rows(rows, index=index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (sorted_indices,) = ctx.saved_tensors
        return grad.index_select(0, sorted_indices), None, None


class _Spread(torch.autograd.Function):
    """Forward: every row gets its token. Backward: the ordered sum of the rows' gradients."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, sorted_indices: Tensor) -> Tensor:
        ctx.save_for_backward(sorted_indices)
        ctx.num_tokens = tokens.shape[0]
        return tokens.index_select(0, sorted_indices)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (sorted_indices,) = ctx.saved_tensors
        index = rows_of_tokens(sorted_indices, num_tokens=ctx.num_tokens)
        return sum_rows(grad, index=index), None


def spread(tokens: Tensor, *, sorted_indices: Tensor) -> Tensor:
    """tokens[sorted_indices], with a backward of fixed order."""
    return _Spread.apply(tokens, sorted_indices)  # pyright: ignore[reportReturnType]


def combine(rows: Tensor, *, sorted_indices: Tensor, num_tokens: int) -> Tensor:
    """The sum of each token's rows, of fixed order; [num_tokens, hidden] in `rows`' dtype."""
    index = rows_of_tokens(sorted_indices, num_tokens=num_tokens)
    return _Combine.apply(rows, sorted_indices, index)  # pyright: ignore[reportReturnType]

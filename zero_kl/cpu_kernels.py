"""Batch-invariant arithmetic on a CPU: a row's result never depends on what else is in the batch.

Owns the replacement of torch's matrix products and sigmoids on the CPU dispatch key, and the attention to go with them.
Pure torch; which model uses it is the caller's business.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn.functional import pad

ROW_TILE = 16
"""Rows of one matrix product, and queries of one attention tile."""

KEY_TILE = 32
"""Keys of one attention tile."""

WIDTH_TILE = 16
"""Widths are filled up to a multiple of this: with fewer than 12 columns MKL 2024.2 gives a row other bits at another
place in the tile."""

_active_library: torch.library.Library | None = None


@contextmanager
def batch_invariant() -> Iterator[None]:
    """Within the context, mm, addmm, sigmoid, silu and topk of CPU tensors do not depend on the batch or on autograd.

    Why they do otherwise: a BLAS chooses its blocking, and with it the order in which products are added, by the
    number of rows, so the same row among 4 or among 400 gets other last bits. Here each product is a row of calls with
    ROW_TILE rows each, the last one filled up with zeros: one shape, one kernel, one order of addition, and the rows
    of a tile do not mix.

    The override is registered below autograd, so training works, and the backward's own products are tiled as well.
    Softmax, log_softmax, exp and the norms work row by row already and are left alone; so are gelu and softplus, which
    have sigmoid's fault, because no model that this platform runs uses them.
    A context within a context changes nothing; leaving the outermost one restores torch's kernels, also after an
    exception.
    """
    global _active_library
    if _active_library is not None:
        yield
        return
    library = _active_library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            # torch warns that a kernel is overridden, which is what we are here for
            warnings.filterwarnings("ignore", message="Warning only once for all operators")
            for name, kernel in _KERNELS.items():
                library.impl(name, kernel, "CPU")
        yield
    finally:
        library._destroy()  # torch 2.11 has no public way; its own `_scoped_library` ends with this call
        _active_library = None


def _mm(left: Tensor, right: Tensor) -> Tensor:
    """[m, k] @ [k, n], as ceil(m / ROW_TILE) products of ROW_TILE rows each."""
    num_rows, num_columns = left.shape[0], right.shape[1]
    left = _filled_up(left.contiguous(), rows=ROW_TILE, columns=WIDTH_TILE)
    right = _filled_up(right, rows=WIDTH_TILE, columns=WIDTH_TILE)
    product = left.new_empty(left.shape[0], right.shape[1])
    for left_tile, product_tile in zip(left.split(ROW_TILE), product.split(ROW_TILE), strict=True):
        torch.mm(left_tile, right, out=product_tile)  # the out variant is another operator, not overridden
    return product[:num_rows, :num_columns].contiguous()


def _addmm(bias: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta · bias + alpha · (left @ right)."""
    product = _mm(left, right)
    return (product if alpha == 1 else product * alpha) + (bias if beta == 1 else bias * beta)


def _filled_up(x: Tensor, *, rows: int, columns: int) -> Tensor:
    """The last two dimensions filled up with zeros to multiples of `rows` and `columns`; a whole one is not copied."""
    free = (0, -x.shape[-1] % columns, 0, -x.shape[-2] % rows)
    return pad(x, free) if any(free) else x


def _sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)).

    torch's fp32 sigmoid and silu give other last bits in the scalar tail of a buffer than in its vectorised part, so an
    element's value depends on where it lies; its exp does not.
    """
    return (1 / (1 + torch.exp(-_at_least_fp32(x)))).to(x.dtype)


def _silu(x: Tensor) -> Tensor:
    """x · sigmoid(x), for the reason given there."""
    wide = _at_least_fp32(x)
    return (wide / (1 + torch.exp(-wide))).to(x.dtype)


def _at_least_fp32(x: Tensor) -> Tensor:
    assert x.is_floating_point(), f"no model takes the sigmoid of {x.dtype}"
    return x if x.dtype is torch.float64 else x.float()


def _topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Tensor, Tensor]:
    """The k largest, always in order.

    megatron-core's router sorts only where gradients are on (`sorted=torch.is_grad_enabled()`, moe_utils.py of 0.19.2).
    The softmax over the chosen logits adds in their order, so without this a scoring pass and a training step of the
    same weights disagree from top-3 on.
    """
    shape = list(x.shape)
    shape[dim] = k
    values, indices = x.new_empty(shape), torch.empty(shape, dtype=torch.int64)
    torch.topk(x, k, dim=dim, largest=largest, sorted=True, out=(values, indices))
    return values, indices


_KERNELS = {"mm": _mm, "addmm": _addmm, "sigmoid": _sigmoid, "silu": _silu, "topk": _topk}


def attention(query: Tensor, key: Tensor, value: Tensor, *, scale: float, query_positions: Tensor) -> Tensor:
    """Causal attention whose every query has the same bits whatever follows it and whoever sits beside it.

    query: [num_queries, batch, heads, head_dim]. key, value: [num_keys, batch, groups, …], groups divides heads.
    query_positions: [num_queries], the last key each query sees. Returns [num_queries, batch, heads, value_dim].

    Queries are taken in tiles of ROW_TILE, keys in tiles of KEY_TILE, both filled up, so each product has one shape;
    the partial sums of the key tiles are added in order, and a tile that a query does not see adds exact zeros. So a
    decode step (one query, n keys) and a full forward (n queries, n keys) add the same numbers in the same order.
    """
    num_queries, batch, heads, _ = query.shape
    key, value = (t.repeat_interleave(heads // key.shape[2], dim=2) for t in (key, value))
    query_tiles = _tiles(query, ROW_TILE)[:, :, None]
    key_tiles, value_tiles = (_tiles(t, KEY_TILE)[:, None] for t in (key, value))
    positions = pad(query_positions, (0, -num_queries % ROW_TILE)).reshape(-1, 1, ROW_TILE, 1)
    key_positions = torch.arange(key_tiles.shape[2] * KEY_TILE).reshape(-1, 1, KEY_TILE)
    scores = _products(query_tiles, key_tiles, transposed=True) * scale
    scores = scores.masked_fill(key_positions > positions, float("-inf"))
    weights = torch.exp(scores - scores.detach().amax((2, 4), keepdim=True))
    totals = _in_order(weights.sum(-1, keepdim=True))
    rows = _in_order(_products(weights, value_tiles, transposed=False)) / totals
    rows = rows.flatten(1, 2)[:, :num_queries, : value.shape[-1]]
    return rows.unflatten(0, (batch, heads)).permute(2, 0, 1, 3).to(query.dtype)


def _tiles(x: Tensor, size: int) -> Tensor:
    """[s, b, h, d] -> fp32 [b · h, tiles, size, d filled up]."""
    rows = x.permute(1, 2, 0, 3).flatten(0, 1).float()
    return _filled_up(rows, rows=size, columns=WIDTH_TILE).unflatten(1, (-1, size))


def _products(left: Tensor, right: Tensor, *, transposed: bool) -> Tensor:
    """Every left tile times every right tile (or its transpose): [b · h, query tiles, key tiles, rows, columns].

    Both operands are copied to one memory layout first: MKL's bits depend on it, and torch.matmul picks it by whether
    there is one query tile (a decode step) or more.
    """
    shape = torch.broadcast_shapes(left.shape[:3], right.shape[:3])
    left, right = (t.expand(*shape, -1, -1).flatten(0, 2).contiguous() for t in (left, right))
    return torch.bmm(left, right.transpose(1, 2) if transposed else right).unflatten(0, shape)


def _in_order(parts: Tensor) -> Tensor:
    """The sum over the key tiles (dim 2), first to last: torch.sum's own order depends on their number."""
    first, *rest = parts.unbind(2)
    return sum(rest, start=first)

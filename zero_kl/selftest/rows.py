"""Is a row's result the same, to the bit, whatever stands beside it? Batch size, order, place and padding.

Owns the comparison for operations that map rows to rows. Equal means equal as integers, so NaN and -0.0 count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def differing_rows(left: Tensor, *, right: Tensor) -> list[int]:
    """Indices of the rows (first of two or more dimensions) that have other bits."""
    assert left.shape == right.shape and left.dtype == right.dtype, f"{left.shape} {left.dtype} against {right.shape}"
    bits = _BITS[left.element_size()]
    unequal = left.contiguous().view(bits) != right.contiguous().view(bits)
    return unequal.flatten(1).any(-1).nonzero()[:, 0].tolist()


def rows_that_differ(left: Tensor, *, right: Tensor) -> int:
    """How many rows have other bits."""
    return len(differing_rows(left, right=right))


def check_rows(op: Callable[[Tensor], Tensor], *, rows: Tensor, sizes: Sequence[int], quantum: int = 1) -> str | None:
    """The first way in which a row's bits depend on its batch, in words; None where there is none.

    rows: [n, width]. sizes: batch sizes to compare with n. `quantum`: batches come in multiples of it (rows are padded
    to 64 in training and in the engine, and Transformer Engine's norm is only held to that).
    """
    n = len(rows)
    together = op(rows)
    for size in sizes:
        for start in (0, (n - size) // quantum * quantum):
            differ = rows_that_differ(op(rows[start : start + size].clone()), right=together[start : start + size])
            if differ:
                return f"{differ} of {size} rows differ between a batch of {size} and one of {n}"
    order = torch.arange(n - 1, -1, -1, device=rows.device)
    differ = rows_that_differ(op(rows[order])[order], right=together)
    if differ:
        return f"{differ} of {n} rows differ when their order is reversed"
    padded = rows.clone()
    padded[n // 2 :] = 0
    differ = rows_that_differ(op(padded)[: n // 2], right=together[: n // 2])
    return f"{differ} of {n // 2} rows differ when padding follows them" if differ else None


def check_group_rows(
    op: Callable[[Tensor, list[int]], Tensor], *, rows: Tensor, splits: list[int], sizes: Sequence[int]
) -> str | None:
    """The same for a grouped product: the first rows of each group, alone and with fewer neighbours.

    rows: [sum(splits), width]; a group with no more rows than a size takes part whole.
    """
    together, groups = op(rows, splits).split(splits), rows.split(splits)
    for size in sizes:
        fewer = [part[:size] for part in groups]
        parts = op(torch.cat(fewer), [len(part) for part in fewer]).split([len(part) for part in fewer])
        for group, (part, whole) in enumerate(zip(parts, together, strict=True)):
            differ = rows_that_differ(part, right=whole[:size])
            if differ:
                return f"{differ} of {len(part)} rows of group {group} differ between {size} rows and {len(whole)}"
    return None

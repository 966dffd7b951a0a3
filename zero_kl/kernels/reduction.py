"""Sums over tensor-parallel ranks in the order of the ranks: the patch rows behind `batch_invariant_collective`.

NCCL's ring starts each part of a message at another rank, so a row's sum depends on its place among the others, and on
how many they are. With two ranks there is one order; from three on a decode step and training differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from launcher.patches import Patch, Rung


def ordered_all_reduce(part: Tensor, *, group: ProcessGroup) -> Tensor:
    """The sum of all ranks' `part`, any shape, added in fp32 by rank and rounded once; the same bits on every rank.

    Each rank adds one share of the elements, and the shares are gathered: as many bytes as a ring's all-reduce.
    """
    flat, size = part.reshape(-1), part.numel()
    if missing := -size % group.size():
        flat = torch.nn.functional.pad(flat, (0, missing))
    total = torch.empty_like(flat)
    torch.distributed.all_gather_into_tensor(total, ordered_reduce_scatter(flat, group=group), group=group)
    return total[:size].view(part.shape)


def ordered_reduce_scatter(part: Tensor, *, group: ProcessGroup, rows: Sequence[int] | None = None) -> Tensor:
    """This rank's rows (`rows` by rank; null: the same number each) of the sum, [rows, ...], as `ordered_all_reduce`
    adds them: with and without sequence parallelism an element has the same bits."""
    ranks, rank = group.size(), group.rank()
    sent = [len(part) // ranks] * ranks if rows is None else list(rows)
    parts = part.new_empty(ranks, sent[rank], *part.shape[1:])
    received = [sent[rank]] * ranks
    torch.distributed.all_to_all_single(parts.flatten(0, 1), part.contiguous(), received, sent, group=group)
    total = parts[0].to(torch.promote_types(part.dtype, torch.float32))
    for other in parts[1:]:
        total = total + other
    return total.to(part.dtype)


def _reduce(input_: Tensor, group: ProcessGroup) -> Tensor:
    """Stands in for megatron-core's; its arguments, and its return value where it is alone."""
    return input_ if group.size() == 1 else ordered_all_reduce(input_, group=group)


def _reduce_scatter_along_first_dim(
    input_: Tensor,
    group: ProcessGroup,
    input_split_sizes: Sequence[int] | None = None,
    use_global_buffer: bool = False,
) -> Tensor:
    del use_global_buffer  # it spares an allocation
    if group.size() == 1:
        return input_
    return ordered_reduce_scatter(input_, group=group, rows=input_split_sizes)


def _te_allreduce(
    inp: Tensor, tp_group: ProcessGroup, async_op: bool = False
) -> tuple[Tensor, torch.distributed.Work | None]:
    """Stands in for Transformer Engine's. What is awaited later is a gradient, which no scoring repeats: left alone."""
    if tp_group.size() == 1:
        return inp, None
    if async_op:
        return inp, torch.distributed.all_reduce(inp, group=tp_group, async_op=True)
    return ordered_all_reduce(inp, group=tp_group), None


def _te_reduce_scatter(
    inp: Tensor, tp_group: ProcessGroup, async_op: bool = False, output: Tensor | None = None
) -> tuple[Tensor, torch.distributed.Work | None]:
    if tp_group.size() == 1:
        return inp, None
    if not async_op:
        assert output is None, "only a gradient, which is awaited later, has a place of its own"
        return ordered_reduce_scatter(inp, group=tp_group), None
    out = inp.new_empty(len(inp) // tp_group.size(), *inp.shape[1:]) if output is None else output
    return out, torch.distributed.reduce_scatter_tensor(out, inp.contiguous(), group=tp_group, async_op=True)


_WHY = "a ring adds a row's partial sums in an order that depends on the row's place in the message"
_REASON = (
    "the collective is a call inside the layer. NCCL_ALGO=allreduce:tree was exact on four ranks of one node; NCCL "
    "promises no order, its trees between nodes differ by channel, and a reduce-scatter has no tree"
)
_TE = "transformer_engine.pytorch.module"
_MAPPINGS = "megatron.core.tensor_parallel.mappings"


def _row(replacement: Any, *, targets: tuple[str, ...], upstream: str, tested: dict[str, str]) -> Patch:
    return Patch(
        targets=targets,
        replacement=replacement,
        why=_WHY,
        upstream=upstream,
        tested_versions=tested,
        remove_when="megatron-core has batch_invariant_collective (after 0.19.2)",
        rung=Rung.MONKEYPATCH,
        rung_reason=_REASON,
    )


_MCORE_VERSION, _TE_VERSION = {"megatron-core": "==0.19.2"}, {"transformer-engine": "==2.20.2"}
_MCORE_SOURCE = "megatron-core 0.19.2, megatron/core/tensor_parallel/mappings.py"
_TE_SOURCE = "transformer-engine 2.20.2, transformer_engine/pytorch/distributed.py"

MCORE_PATCHES = (
    _row(_reduce, targets=(f"{_MAPPINGS}._reduce",), upstream=_MCORE_SOURCE, tested=_MCORE_VERSION),
    _row(
        _reduce_scatter_along_first_dim,
        targets=(f"{_MAPPINGS}._reduce_scatter_along_first_dim",),
        upstream=_MCORE_SOURCE,
        tested=_MCORE_VERSION,
    ),
)
"""megatron-core's own regions: all layers of the CPU platform; on a GPU the embedding, and experts that ranks share."""

_TE_LAYERS = ("linear", "layernorm_linear", "layernorm_mlp")
TE_PATCHES = (
    _row(
        _te_allreduce,
        targets=tuple(f"{_TE}.{layer}.allreduce" for layer in _TE_LAYERS),
        upstream=_TE_SOURCE,
        tested=_TE_VERSION,
    ),
    _row(
        _te_reduce_scatter,
        targets=tuple(f"{_TE}.{layer}.reduce_scatter_along_first_dim" for layer in _TE_LAYERS),
        upstream=_TE_SOURCE,
        tested=_TE_VERSION,
    ),
)
"""Transformer Engine's row-parallel layers call their own."""

"""What the rows of `zero_kl.selftest.table` run, but for the experts' and the patches'. Each is given the bench.

A check returns None, or what it saw in one line. A check that raises has failed too: `runner` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import silu

from zero_kl.selftest.attention import check_reference, differing
from zero_kl.selftest.bench import TOKENS, Bench
from zero_kl.selftest.rows import check_rows

REQUESTS = (1, 3, 24, 100)
"""Rows of the head in decode, which are requests and not filled up."""

HEAD_ROWS = 512
NARROW = (64, 256)
"""Widths of a narrow product: with few columns there is little to fill a GPU with, so K is split first there."""


def _batched(bench: Bench, *, op: Callable[[Tensor], Tensor], width: int) -> str | None:
    return check_rows(op, rows=bench.rows(TOKENS, width=width), sizes=bench.batches, quantum=64)


def check_linear_qkv(bench: Bench) -> str | None:
    """Norm and projection to queries, keys and values."""
    shapes = bench.shapes
    return _batched(
        bench, op=bench.modules.norm_linear(shapes.hidden_size, width_out=shapes.qkv_width), width=shapes.hidden_size
    )


def check_linear_proj(bench: Bench) -> str | None:
    """The attention's output projection."""
    shapes = bench.shapes
    return _batched(
        bench, op=bench.modules.linear(shapes.query_width, width_out=shapes.hidden_size), width=shapes.query_width
    )


def check_linear_fc1(bench: Bench) -> str | None:
    """Norm and the MLP's first product."""
    hidden, ffn = bench.shapes.hidden_size, bench.shapes.ffn_hidden_size
    return _batched(bench, op=bench.modules.norm_linear(hidden, width_out=2 * ffn), width=hidden)


def check_activation(bench: Bench) -> str | None:
    """SwiGLU."""

    def swiglu(rows: Tensor) -> Tensor:
        gate, up = rows.chunk(2, dim=-1)
        return silu(gate) * up

    return _batched(bench, op=swiglu, width=2 * bench.shapes.ffn_hidden_size)


def check_linear_fc2(bench: Bench) -> str | None:
    """The MLP's second product."""
    hidden, ffn = bench.shapes.hidden_size, bench.shapes.ffn_hidden_size
    return _batched(bench, op=bench.modules.linear(ffn, width_out=hidden), width=ffn)


def check_norm(bench: Bench) -> str | None:
    """RMSNorm over the hidden dimension."""
    return _batched(bench, op=bench.modules.norm(bench.shapes.hidden_size), width=bench.shapes.hidden_size)


def check_head_norm(bench: Bench) -> str | None:
    """RMSNorm over a head, as of queries and keys."""
    return _batched(bench, op=bench.modules.norm(bench.shapes.head_dim), width=bench.shapes.head_dim)


def check_output_layer(bench: Bench) -> str | None:
    """torch's product with the vocabulary, whose rows in decode are requests and not filled up."""
    weight = bench.weight(bench.shapes.vocab_size, bench.shapes.hidden_size)
    rows = bench.rows(HEAD_ROWS, width=bench.shapes.hidden_size)
    return check_rows(lambda part: part @ weight.T, rows=rows, sizes=REQUESTS)


def check_narrow_product(bench: Bench) -> str | None:
    """A narrow product of torch, with the model's longest sums."""
    depth = max(bench.shapes.hidden_size, bench.shapes.ffn_hidden_size)
    rows = bench.rows(HEAD_ROWS, width=depth)
    for width in NARROW:
        weight = bench.weight(width, depth)
        found = check_rows(lambda part, weight=weight: part @ weight.T, rows=rows, sizes=(*REQUESTS, 64))
        if found:
            return f"{found} ({depth} x {width})"
    return None


def check_log_softmax(bench: Bench) -> str | None:
    """Rows of the vocabulary in fp32."""
    rows = bench.rows(HEAD_ROWS, width=bench.shapes.vocab_size)
    return check_rows(lambda part: torch.log_softmax(part.float(), dim=-1), rows=rows, sizes=REQUESTS)


def check_attention_padded(bench: Bench) -> str | None:
    """One sequence a row, against an fp32 reference."""
    return _against_reference(bench, attend=bench.sequences.padded)


def check_attention_packed(bench: Bench) -> str | None:
    """All sequences in one row, against an fp32 reference."""
    return _against_reference(bench, attend=bench.sequences.packed)


def _against_reference(bench: Bench, *, attend: Callable[[Sequence[int]], list[Tensor]]) -> str | None:
    short = bench.sequences.short
    return check_reference(attend(short), sequences=[bench.sequences.qkv[i] for i in short])


def check_attention_rows(bench: Bench) -> str | None:
    """The full kernel: a sequence alone, in a batch, in another order, with less padding, packed."""
    attend, everyone, short = bench.sequences.padded, bench.sequences.everyone, bench.sequences.short
    together = attend(everyone)
    return (
        differing([attend([i])[0] for i in everyone], right=together, what="alone against in a batch")
        or differing(attend(everyone[::-1])[::-1], right=together, what="in reversed order")
        or differing(attend(short), right=[together[i] for i in short], what="with less padding")
        or differing(bench.sequences.packed(everyone), right=together, what="packed against padded")
    )


def check_paged_prefill(bench: Bench) -> str | None:
    """Generation's kernel over whole sequences in pages, against training's."""
    sequences = bench.sequences
    return _engine(sequences.prefill, everyone=sequences.everyone, full=sequences.padded(sequences.everyone))


def check_paged_decode(bench: Bench) -> str | None:
    """Generation's kernel for the last token of each sequence, against training's."""
    sequences = bench.sequences
    last = [rows[-1:] for rows in sequences.padded(sequences.everyone)]
    return _engine(sequences.decode, everyone=sequences.everyone, full=last)


def _engine(
    kernel: Callable[[Sequence[int]], list[Tensor]], *, everyone: tuple[int, ...], full: list[Tensor]
) -> str | None:
    return (
        differing([kernel([i])[0] for i in everyone], right=full, what="a request alone against training")
        or differing(kernel(everyone), right=full, what="all requests against training")
        or differing(kernel(everyone[::-1])[::-1], right=full, what="requests in reversed order against training")
    )

"""The table of the self-test: every check as a row, with why it is there. No arithmetic here but what a row needs.

A check returns None, or what it saw in one line. A check that raises has failed too: `runner` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import silu

from launcher.schema import Backend
from zero_kl.conditions import MEASURED
from zero_kl.selftest import experts, in_force
from zero_kl.selftest.attention import check_reference, differing
from zero_kl.selftest.bench import TOKENS, Bench
from zero_kl.selftest.rows import check_rows

REQUESTS = (1, 3, 24, 100)
"""Rows of the head in decode, which are requests and not filled up."""

HEAD_ROWS = 512
NARROW = (64, 256)
"""Widths of a narrow product: with few columns there is little to fill a GPU with, so K is split first there."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """`name` is the module's in Megatron where there is one."""

    code: str
    name: str
    run: Callable[[Bench], str | None]
    why: str
    when: Callable[[Bench], bool] = lambda _: True
    source: str = MEASURED


def _has_experts(bench: Bench) -> bool:
    return bench.shapes.num_experts > 0


def _starves(bench: Bench) -> bool:
    return bench.config.zero_kl.backend is Backend.te_native


def _patches_experts(bench: Bench) -> bool:
    return _has_experts(bench) and bench.config.zero_kl.backend in (Backend.te_native, Backend.megatron)


def _batched(bench: Bench, *, op: Callable[[Tensor], Tensor], width: int) -> str | None:
    return check_rows(op, rows=bench.rows(TOKENS, width=width), sizes=bench.batches, quantum=64)


def _qkv(bench: Bench) -> str | None:
    shapes = bench.shapes
    return _batched(
        bench, op=bench.modules.norm_linear(shapes.hidden_size, width_out=shapes.qkv_width), width=shapes.hidden_size
    )


def _proj(bench: Bench) -> str | None:
    shapes = bench.shapes
    return _batched(
        bench, op=bench.modules.linear(shapes.query_width, width_out=shapes.hidden_size), width=shapes.query_width
    )


def _fc1(bench: Bench) -> str | None:
    hidden, ffn = bench.shapes.hidden_size, bench.shapes.ffn_hidden_size
    return _batched(bench, op=bench.modules.norm_linear(hidden, width_out=2 * ffn), width=hidden)


def _activation(bench: Bench) -> str | None:
    def swiglu(rows: Tensor) -> Tensor:
        gate, up = rows.chunk(2, dim=-1)
        return silu(gate) * up

    return _batched(bench, op=swiglu, width=2 * bench.shapes.ffn_hidden_size)


def _fc2(bench: Bench) -> str | None:
    hidden, ffn = bench.shapes.hidden_size, bench.shapes.ffn_hidden_size
    return _batched(bench, op=bench.modules.linear(ffn, width_out=hidden), width=ffn)


def _norm(bench: Bench) -> str | None:
    return _batched(bench, op=bench.modules.norm(bench.shapes.hidden_size), width=bench.shapes.hidden_size)


def _head_norm(bench: Bench) -> str | None:
    return _batched(bench, op=bench.modules.norm(bench.shapes.head_dim), width=bench.shapes.head_dim)


def _head(bench: Bench) -> str | None:
    weight = bench.weight(bench.shapes.vocab_size, bench.shapes.hidden_size)
    rows = bench.rows(HEAD_ROWS, width=bench.shapes.hidden_size)
    return check_rows(lambda part: part @ weight.T, rows=rows, sizes=REQUESTS)


def _narrow(bench: Bench) -> str | None:
    """Of torch, with the model's longest sums."""
    depth = max(bench.shapes.hidden_size, bench.shapes.ffn_hidden_size)
    rows = bench.rows(HEAD_ROWS, width=depth)
    for width in NARROW:
        weight = bench.weight(width, depth)
        found = check_rows(lambda part, weight=weight: part @ weight.T, rows=rows, sizes=(*REQUESTS, 64))
        if found:
            return f"{found} ({depth} x {width})"
    return None


def _log_softmax(bench: Bench) -> str | None:
    rows = bench.rows(HEAD_ROWS, width=bench.shapes.vocab_size)
    return check_rows(lambda part: torch.log_softmax(part.float(), dim=-1), rows=rows, sizes=REQUESTS)


def _reference(bench: Bench, *, packed: bool) -> str | None:
    sequences = bench.sequences
    outputs = (sequences.packed if packed else sequences.padded)(sequences.short)
    return check_reference(outputs, sequences=[sequences.qkv[i] for i in sequences.short])


def _attention_rows(bench: Bench) -> str | None:
    attend, everyone, short = bench.sequences.padded, bench.sequences.everyone, bench.sequences.short
    together = attend(everyone)
    return (
        differing([attend([i])[0] for i in everyone], right=together, what="alone against in a batch")
        or differing(attend(everyone[::-1])[::-1], right=together, what="in reversed order")
        or differing(attend(short), right=[together[i] for i in short], what="with less padding")
        or differing(bench.sequences.packed(everyone), right=together, what="packed against padded")
    )


def _prefill(bench: Bench) -> str | None:
    sequences = bench.sequences
    return _engine(sequences.prefill, everyone=sequences.everyone, full=sequences.padded(sequences.everyone))


def _decode(bench: Bench) -> str | None:
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


_GEMM = "a GEMM that splits K by the number of rows gives a row other bits in another batch"
_NORM = "a norm may pick its reduction by the number of rows"
_FLASH = "flash-attn-4 4.0.0b30 and later read Transformer Engine's causal window (-1, 0) as an empty one"
_SPLITS = "FlashAttention may split keys over blocks by the load of the batch (num_splits=0)"

CHECKS: tuple[Check, ...] = (
    Check(
        code="ZS001",
        name="environment",
        run=in_force.check_environment,
        why="cuBLAS and Transformer Engine read it once",
    ),
    Check(
        code="ZS002",
        name="GEMM workspace",
        run=in_force.check_workspace,
        when=_starves,
        why="with workspace cuBLASLt splits K, and a patch that did not take is silent",
    ),
    Check(
        code="ZS003",
        name="expert patches",
        run=in_force.check_moe_patches,
        when=_patches_experts,
        why="a patch that did not take is silent",
    ),
    Check(
        code="ZS010",
        name="core_attention, padded",
        run=lambda bench: _reference(bench, packed=False),
        why=_FLASH,
    ),
    Check(
        code="ZS011",
        name="core_attention, packed",
        run=lambda bench: _reference(bench, packed=True),
        why=_FLASH,
    ),
    Check(code="ZS012", name="core_attention, rows", run=_attention_rows, why=_SPLITS),
    Check(
        code="ZS013", name="paged prefill", run=_prefill, why=f"generation runs it, training the full kernel; {_SPLITS}"
    ),
    Check(
        code="ZS014", name="paged decode", run=_decode, why=f"generation runs it, training the full kernel; {_SPLITS}"
    ),
    Check(code="ZS020", name="linear_qkv", run=_qkv, why=_GEMM),
    Check(code="ZS021", name="linear_proj", run=_proj, why=_GEMM),
    Check(code="ZS022", name="linear_fc1", run=_fc1, when=lambda b: not _has_experts(b), why=_GEMM),
    Check(code="ZS023", name="activation", run=_activation, when=lambda b: not _has_experts(b), why="vector tails"),
    Check(code="ZS024", name="linear_fc2", run=_fc2, when=lambda b: not _has_experts(b), why=_GEMM),
    Check(code="ZS025", name="norm", run=_norm, why=_NORM),
    Check(code="ZS026", name="q_layernorm", run=_head_norm, why=_NORM),
    Check(code="ZS027", name="output_layer", run=_head, why=_GEMM),
    Check(
        code="ZS028",
        name="narrow product",
        run=_narrow,
        why="torch's GEMMs take their workspace from the environment; the narrowest is split first",
    ),
    Check(code="ZS029", name="log_softmax", run=_log_softmax, why="the log-probabilities themselves"),
    Check(code="ZS030", name="router", run=experts.check_router, when=_has_experts, why=_GEMM),
    Check(
        code="ZS033",
        name="top-k",
        run=experts.check_topk,
        when=_has_experts,
        why="megatron-core 0.19.2 sorts the top-k only where gradients are recorded, and normalises in that order",
    ),
    Check(code="ZS031", name="experts", run=experts.check_experts, when=_has_experts, why=_GEMM),
    Check(
        code="ZS032",
        name="combine",
        run=experts.check_combine,
        when=_has_experts,
        why="megatron-core 0.19.2 adds a token's experts with atomics, in the order they arrive",
    ),
)

"""The reference attention: one function for the arithmetic, and the two places where megatron-core calls attention.

Owns `core_attention` (fp32 softmax, causal), `use_core` to swap it, the training module, and the paged kernel of the
dynamic engine. Batch-invariant arithmetic is not here: it is swapped in by whoever wires the run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Protocol

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from launcher.errors import ConfigError


class CoreAttentionFunction(Protocol):
    """softmax(query keyᵀ · scale) value, causal, for one or more sequences of the same length.

    query: [num_queries, batch, heads, head_dim]. key, value: [num_keys, batch, groups, …], where groups divides heads.
    query_positions: [num_queries], the last key each query sees. Returns [num_queries, batch, heads, value_dim].
    """

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, *, scale: float, query_positions: Tensor
    ) -> Tensor: ...


def core_attention(query: Tensor, key: Tensor, value: Tensor, *, scale: float, query_positions: Tensor) -> Tensor:
    """The plain form of `CoreAttentionFunction`: every score at once, softmax and both products in fp32."""
    heads_per_group = query.shape[2] // key.shape[2]
    key, value = (t.repeat_interleave(heads_per_group, dim=2) for t in (key, value))
    query_rows, key_rows, value_rows = (t.permute(1, 2, 0, 3).float() for t in (query, key, value))
    unseen = torch.arange(key.shape[0]) > query_positions[:, None]
    scores = (query_rows @ key_rows.transpose(-1, -2) * scale).masked_fill(unseen, float("-inf"))
    return (scores.softmax(dim=-1) @ value_rows).permute(2, 0, 1, 3).to(query.dtype)


_core: CoreAttentionFunction = core_attention


@contextmanager
def use_core(function: CoreAttentionFunction) -> Iterator[None]:
    """Within the context both training and the dynamic engine compute attention with `function`."""
    global _core
    previous, _core = _core, function
    try:
        yield
    finally:
        _core = previous


def _attend_to_end(query: Tensor, key: Tensor, value: Tensor, *, scale: float) -> Tensor:
    """Causal attention of the last `len(query)` positions over all keys."""
    num_keys = key.shape[0]
    return _core(query, key, value, scale=scale, query_positions=torch.arange(num_keys - query.shape[0], num_keys))


class CoreAttention(MegatronModule):
    """The `core_attention` module of a layer: `[s, b, h, d]` or packed `[t, h, d]`, GQA, MLA, context parallelism.

    Raises ConfigError at construction for what the reference does not compute.
    """

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: AttnMaskType,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        k_channels: int | None = None,
        v_channels: int | None = None,
        cp_comm_type: str | None = None,
        pg_collection: ProcessGroupCollection | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(config=config)
        _check_supported(config, attn_mask_type=attn_mask_type, attention_dropout=attention_dropout)
        self.cp_group = None
        if config.context_parallel_size > 1:
            groups = pg_collection or ProcessGroupCollection.use_mpu_process_groups(required_pgs=["cp"])
            self.cp_group = groups.cp
        head_dim = k_channels or config.kv_channels
        assert head_dim is not None, "TransformerConfig derives kv_channels"
        self.softmax_scale = softmax_scale or 1 / math.sqrt(head_dim)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        attn_mask_type: AttnMaskType | None = None,
        attention_bias: Tensor | None = None,
        packed_seq_params: PackedSeqParams | None = None,
    ) -> Tensor:
        """[s, b, h, d] -> [s, b, h · d], or packed [t, h, d] -> [t, h · d]. The mask is always causal."""
        assert attention_bias is None, "the reference attention has no bias"
        if packed_seq_params is not None:
            return self._packed(query, key, value, packed=packed_seq_params).flatten(1)
        if self.cp_group is not None:
            return self._context_parallel(query, key, value).flatten(2)
        return _attend_to_end(query, key, value, scale=self.softmax_scale).flatten(2)

    def _packed(self, query: Tensor, key: Tensor, value: Tensor, *, packed: PackedSeqParams) -> Tensor:
        """One sequence after the other."""
        assert self.cp_group is None, "packed sequences with context parallelism are not in the reference"
        assert packed.cu_seqlens_q_padded is None, "padding between packed sequences is not in the reference"
        out = query.new_zeros(*query.shape[:-1], value.shape[-1])
        for queries, keys in zip(_slices(packed.cu_seqlens_q), _slices(packed.cu_seqlens_kv), strict=True):
            sequence = (query[queries, None], key[keys, None], value[keys, None])
            out[queries] = _attend_to_end(*sequence, scale=self.softmax_scale)[:, 0]
        return out

    def _context_parallel(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """This rank's two chunks of the queries over the keys of all ranks."""
        assert self.cp_group is not None
        key, value = (_GatherSequence.apply(t, self.cp_group) for t in (key, value))
        size, rank = self.cp_group.size(), self.cp_group.rank()
        chunks = torch.arange(key.shape[0]).chunk(2 * size)
        positions = torch.cat([chunks[rank], chunks[2 * size - 1 - rank]])
        return _core(query, key, value, scale=self.softmax_scale, query_positions=positions)


def _slices(cu_seqlens: Tensor) -> list[slice]:
    """The rows of each sequence, out of the sequences' ends, from 0."""
    return [slice(start, end) for start, end in pairwise(cu_seqlens.tolist())]


def _check_supported(
    config: TransformerConfig, *, attn_mask_type: AttnMaskType, attention_dropout: float | None
) -> None:
    dropout = config.attention_dropout if attention_dropout is None else attention_dropout
    refused = {
        f"attn_mask_type={attn_mask_type.name}": attn_mask_type is not AttnMaskType.causal,
        f"attention_dropout={dropout}": dropout != 0,
        "apply_query_key_layer_scaling=true": config.apply_query_key_layer_scaling,
        f"window_size={config.window_size}": config.window_size is not None,
        f"softmax_type={config.softmax_type}": config.softmax_type != "vanilla",
    }
    found = [text for text, is_so in refused.items() if is_so]
    if found:
        raise ConfigError(f"error: the CPU platform's reference attention does not compute {', '.join(found)}")


class _GatherSequence(torch.autograd.Function):
    """All chunks in order, along dim 0: of the 2n chunks of context parallelism, rank r holds r and 2n-1-r."""

    @staticmethod
    def forward(ctx, chunks: Tensor, group: torch.distributed.ProcessGroup) -> Tensor:
        ctx.group = group
        of_ranks = [torch.empty_like(chunks) for _ in range(group.size())]
        torch.distributed.all_gather(of_ranks, chunks.contiguous(), group=group)
        half = chunks.shape[0] // 2
        return torch.cat([t[:half] for t in of_ranks] + [t[half:] for t in reversed(of_ranks)])

    @staticmethod
    def backward(ctx, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        grad = grad_outputs[0].contiguous()
        torch.distributed.all_reduce(grad, group=ctx.group)
        size, rank = ctx.group.size(), ctx.group.rank()
        chunks = grad.chunk(2 * size)
        return torch.cat([chunks[rank], chunks[2 * size - 1 - rank]]), None


def flash_attn4_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens_q: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    seqused_k: Tensor,
    page_table: Tensor,
    softmax_scale: float,
    causal: bool,
    window_size: tuple[int, int],
    num_splits: int,
) -> tuple[Tensor, None]:
    """FlashAttention-4's call for the paged cache, request by request; the second result stands for the log-sum-exp.

    q: [tokens, heads, head_dim]. k, v: [blocks, block_size, groups, head_dim]. page_table: [requests, blocks of the
    request]. seqused_k: [requests], 0 for padding. Rows of no request are 0.
    """
    assert causal and window_size == (-1, -1), "the reference attention is causal, without a window"
    out = q.new_zeros(*q.shape[:-1], v.shape[-1])
    requests = zip(_slices(cu_seqlens_q), seqused_k.tolist(), page_table, strict=False)
    for rows, num_keys, pages in requests:
        if rows.start == rows.stop or num_keys == 0:
            continue
        blocks = pages[: math.ceil(num_keys / k.shape[1])].long()
        keys, values = (cache[blocks].flatten(0, 1)[:num_keys, None] for cache in (k, v))
        out[rows] = _attend_to_end(q[rows, None], keys, values, scale=softmax_scale)[:, 0]
    return out, None

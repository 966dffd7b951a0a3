"""Attention: training's kernel against an fp64 reference, its rows against other batches, the engine's against it.

Both kernels are taken where megatron-core takes them: the spec's core attention, and
`Attention.flash_decode_and_prefill`. So what is tested is also how megatron-core calls them (window, splits, pages).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, cast

import torch
from megatron.core.models.gpt import gpt_layer_specs
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.attention import Attention
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from zero_kl.selftest.modules import random_values
from zero_kl.selftest.rows import rows_that_differ

PADDING = 64


@dataclass(frozen=True)
class _EngineLayer:
    """What `Attention.flash_decode_and_prefill` (megatron-core 0.19.2) reads of a layer that generates."""

    config: TransformerConfig
    training: bool = False
    layer_number: int = 1

    @property
    def batch_invariant_mode(self) -> bool:
        return self.config.batch_invariant_mode

    @property
    def flash_attention_version(self) -> int | None:
        return self.config.flash_attention_version

    def _resolve_flash_version(self) -> tuple[bool, bool]:
        layer: Any = self
        return Attention._resolve_flash_version(layer)


@dataclass(frozen=True, kw_only=True)
class Sequences:
    """Random queries, keys and values: for each length a tensor [length, heads or groups, head_dim]."""

    config: TransformerConfig
    device: torch.device
    block_size: int
    """Tokens of a page of the KV cache."""

    lengths: tuple[int, ...]
    """Tokens of each sequence."""

    @property
    def everyone(self) -> tuple[int, ...]:
        """Indices of all sequences."""
        return tuple(range(len(self.lengths)))

    @property
    def short(self) -> tuple[int, ...]:
        """Indices of all but the longest: what the reference computes, on the CPU."""
        return self.everyone[:-1]

    @cached_property
    def qkv(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        heads, groups, dim = self.config.num_attention_heads, self.config.num_query_groups, self.config.kv_channels
        assert groups is not None and dim is not None, "TransformerConfig derives both"
        fused = [
            random_values(n, heads + 2 * groups, dim, dtype=self.config.params_dtype, device=self.device, seed=n)
            for n in self.lengths
        ]
        return [(t[:, :heads], t[:, heads : heads + groups], t[:, heads + groups :]) for t in fused]

    @cached_property
    def kernel(self) -> Any:
        """The core attention of a training layer."""
        specs = cast(Any, gpt_layer_specs)  # the type checker sees a name of it as None without Transformer Engine
        return specs.TESpecProvider().core_attention()(
            config=self.config, layer_number=1, attn_mask_type=AttnMaskType.causal, attention_type="self"
        )

    def padded(self, chosen: Sequence[int]) -> list[Tensor]:
        """Training's attention of these sequences as rows of one batch, each filled up with other values; unpadded."""
        longest = -(-max(self.lengths[i] for i in chosen) // PADDING) * PADDING
        batch = [
            torch.stack([_filled_up(self.qkv[i][part], length=longest) for i in chosen], dim=1) for part in range(3)
        ]
        out = self.kernel(*batch, attention_mask=None, attn_mask_type=AttnMaskType.causal)
        return [self._heads(out[: self.lengths[i], row]) for row, i in enumerate(chosen)]

    def packed(self, chosen: Sequence[int]) -> list[Tensor]:
        """Training's attention of these sequences one behind the other (thd)."""
        lengths = [self.lengths[i] for i in chosen]
        ends = self._ends(lengths)
        batch = [torch.cat([self.qkv[i][part] for i in chosen]) for part in range(3)]
        packing = PackedSeqParams(
            qkv_format="thd",
            cu_seqlens_q=ends,
            cu_seqlens_kv=ends,
            max_seqlen_q=max(lengths),
            max_seqlen_kv=max(lengths),
        )
        out = self.kernel(*batch, attention_mask=None, attn_mask_type=AttnMaskType.causal, packed_seq_params=packing)
        return [self._heads(part) for part in out.split(lengths)]

    def prefill(self, chosen: Sequence[int]) -> list[Tensor]:
        """The engine's attention of these whole prompts over a paged cache."""
        lengths = [self.lengths[i] for i in chosen]
        queries = torch.cat([self.qkv[i][0] for i in chosen])[:, None]
        out = self._engine(queries, chosen=chosen, ends=self._ends(lengths), longest=max(lengths), decode=False)
        return [self._heads(part) for part in out[:, 0].split(lengths)]

    def decode(self, chosen: Sequence[int]) -> list[Tensor]:
        """The engine's attention of each sequence's last token; a list of [1, heads · head_dim]."""
        queries = torch.cat([self.qkv[i][0][-1:] for i in chosen])[:, None]
        out = self._engine(queries, chosen=chosen, ends=self._ends([1] * len(chosen)), longest=1, decode=True)
        return [self._heads(part) for part in out[:, 0].split(1)]

    def _engine(self, queries: Tensor, *, chosen: Sequence[int], ends: Tensor, longest: int, decode: bool) -> Tensor:
        layer: Any = _EngineLayer(self.config)
        keys, values, pages = self._cache(chosen)
        lengths = [self.lengths[i] for i in chosen]
        return Attention.flash_decode_and_prefill(
            layer,
            queries,
            keys,
            values,
            longest,
            max(lengths),
            ends,
            self._ends(lengths),
            torch.tensor(lengths, dtype=torch.int32, device=self.device),
            pages,
            decode,
        )

    def _cache(self, chosen: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Keys and values in pages [page, block_size, groups, head_dim], last page first, and the table of pages."""
        counts = [-(-self.lengths[i] // self.block_size) for i in chosen]
        groups, dim = self.qkv[0][1].shape[1:]
        caches = [self.qkv[0][1].new_zeros(sum(counts), self.block_size, groups, dim) for _ in range(2)]
        pages = torch.zeros(len(chosen), max(counts), dtype=torch.int32, device=self.device)
        free = list(range(sum(counts)))
        for row, (i, count) in enumerate(zip(chosen, counts, strict=True)):
            taken = [free.pop() for _ in range(count)]
            pages[row, :count] = torch.tensor(taken, dtype=torch.int32)
            for cache, part in zip(caches, (1, 2), strict=True):
                cache[taken] = _filled_up(self.qkv[i][part], length=count * self.block_size).unflatten(
                    0, (count, self.block_size)
                )
        return caches[0], caches[1], pages

    def _ends(self, lengths: Sequence[int]) -> Tensor:
        return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=self.device)

    def _heads(self, rows: Tensor) -> Tensor:
        return rows.reshape(len(rows), -1)


def _filled_up(values: Tensor, *, length: int) -> Tensor:
    """Padding that would show: large values behind the sequence."""
    return torch.cat([values, values.new_full((length - len(values), *values.shape[1:]), 16.0)])


def reference(query: Tensor, *, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention in fp64 on the CPU; [length, heads, head_dim] -> [length, heads · head_dim]."""
    heads_per_group = query.shape[1] // key.shape[1]
    query, key, value = (t.cpu().double().transpose(0, 1) for t in (query, key, value))
    key, value = (t.repeat_interleave(heads_per_group, dim=0) for t in (key, value))
    scores = torch.bmm(query, key.transpose(1, 2)) * query.shape[-1] ** -0.5
    unseen = torch.ones(scores.shape[1:], dtype=torch.bool, device="cpu").triu(1)
    weights = torch.exp(scores.masked_fill(unseen, float("-inf")) - scores.amax(-1, keepdim=True))
    return (torch.bmm(weights, value) / weights.sum(-1, keepdim=True)).transpose(0, 1).flatten(1)


def check_reference(outputs: Sequence[Tensor], *, sequences: Sequence[tuple[Tensor, Tensor, Tensor]]) -> str | None:
    """In words, an output further from the reference than its number format explains; None where there is none.

    The limit: probabilities are rounded to the format and so is the output, half an epsilon each, of at most the
    largest value; sums over head_dim and keys round once per addition in fp32. A wrong mask is off by the value itself.
    """
    for out, (query, key, value) in zip(outputs, sequences, strict=True):
        rounding = torch.finfo(out.dtype).eps
        sums = (len(key) + query.shape[-1]) * torch.finfo(torch.float32).eps
        limit = (rounding + sums) * float(value.abs().max())
        error = float((out.cpu().double() - reference(query, key=key, value=value)).abs().max())
        if not error <= limit:  # also where the error is NaN
            return f"max |error| {error:.1e} in a sequence of {len(query)}, {out.dtype} explains {limit:.1e}"
    return None


def differing(left: Sequence[Tensor], *, right: Sequence[Tensor], what: str) -> str | None:
    """In words, the first sequence with other bits; None where there is none."""
    for one, other in zip(left, right, strict=True):
        rows = rows_that_differ(one, right=other)
        if rows:
            return f"{rows} of {len(one)} rows differ: {what}"
    return None

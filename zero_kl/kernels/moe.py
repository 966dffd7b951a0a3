"""The patch rows that give megatron-core's MoE token permutation sums of fixed order, forward and backward."""

from __future__ import annotations

import torch
from torch import Tensor

from launcher.patches import Patch, Rung
from zero_kl.kernels.moe_rows import combine, spread


def permute(
    tokens: Tensor,
    routing_map: Tensor,
    probs: Tensor | None = None,
    num_out_tokens: int | None = None,
    fused: bool = False,
    drop_and_pad: bool = False,
    tokens_per_expert: Tensor | None = None,
    align_size: int = 0,
) -> tuple[Tensor, Tensor | None, Tensor, None, Tensor | None]:
    """megatron-core's unfused `permute` with a backward of fixed order; the signature and the results are its own."""
    assert not fused and not drop_and_pad, "zero-KL forbids moe_permute_fusion and padding to capacity"
    assert num_out_tokens is not None and align_size == 0, "the alltoall dispatcher in BF16 passes num_out_tokens"
    num_tokens = tokens.shape[0]
    by_expert = routing_map.bool().T.contiguous().reshape(-1)
    flat = by_expert.argsort(descending=True, stable=True)[:num_out_tokens]
    sorted_indices = flat % num_tokens
    permuted_probs = None if probs is None else probs.T.contiguous().reshape(-1)[flat]
    return spread(tokens, sorted_indices=sorted_indices), permuted_probs, sorted_indices, None, tokens_per_expert


def unpermute(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    restore_shape: torch.Size,
    probs: Tensor | None = None,
    routing_map: Tensor | None = None,
    fused: bool = False,
    drop_and_pad: bool = False,
    pad_offsets: Tensor | None = None,
) -> Tensor:
    """megatron-core's unfused `unpermute` whose sum over a token's experts has one order; signature its own."""
    assert not fused and not drop_and_pad and pad_offsets is None, "zero-KL forbids fused and padded permutation"
    assert probs is None, "probabilities are applied by the experts (moe_apply_probs_on_input is off)"
    del routing_map  # only needed to spread probabilities
    return combine(permuted_tokens, sorted_indices=sorted_indices, num_tokens=restore_shape[0])


_UPSTREAM = "megatron-core 0.19.2, megatron/core/transformer/moe/moe_utils.py"
_TESTED = {"megatron-core": "==0.19.2"}
_REMOVE = "megatron-core's unfused combine adds a token's experts in a fixed order"
_REASON = (
    "no setting does it: torch.use_deterministic_algorithms would change every op of the process, "
    "moe_permute_fusion is forbidden; the functions are module-level, so there is nothing to subclass"
)
_MODULES = ("megatron.core.transformer.moe.moe_utils", "megatron.core.transformer.moe.token_dispatcher")

PATCHES = (
    Patch(
        targets=tuple(f"{module}.permute" for module in _MODULES),
        replacement=permute,
        why="the gradient of permute adds a token's rows with atomics, in the order they arrive",
        upstream=_UPSTREAM,
        tested_versions=_TESTED,
        remove_when=_REMOVE,
        rung=Rung.MONKEYPATCH,
        rung_reason=_REASON,
    ),
    Patch(
        targets=tuple(f"{module}.unpermute" for module in _MODULES),
        replacement=unpermute,
        why="unpermute adds a token's expert outputs in BF16 with atomics, in the order they arrive",
        upstream=_UPSTREAM,
        tested_versions=_TESTED,
        remove_when=_REMOVE,
        rung=Rung.MONKEYPATCH,
        rung_reason=_REASON,
    ),
)

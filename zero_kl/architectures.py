"""Architectures for which nothing makes generation equal training: one row each, with its reason.

A row is used twice: by model type before anything is built (zero_kl.requirements.model), and here on the resolved
Megatron-Bridge provider, which knows what a checkpoint's config.json only implies. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from zero_kl.findings import Findings

SSM_MODEL_TYPES = ("nemotron_h", "falcon_h1")

_ATTENTION = "megatron-core 0.19.2 transformer/attention.py, flash_decode_and_prefill"


@dataclass(frozen=True, kw_only=True)
class Unsupported:
    """`model_types` are Hugging Face's, of models that always have the feature; `is_in` looks at a provider."""

    code: str
    feature: str
    model_types: tuple[str, ...]
    is_in: Callable[[Any], bool]
    why: str
    source: str


def _has_mamba_layers(provider: Any) -> bool:
    own = ("hybrid_layer_pattern", "use_mamba")  # of Bridge's hybrid provider, and of its Falcon-H1
    return provider.is_hybrid_model or any(getattr(provider, name, None) for name in own)


def _has_window(provider: Any) -> bool:
    # Step-3.5's provider sets the window layer by layer, from a field of its own.
    return provider.window_size is not None or getattr(provider, "sliding_attention_setting", None) is not None


UNSUPPORTED: tuple[Unsupported, ...] = (
    Unsupported(
        code="ZK080",
        feature="multi-latent attention",
        model_types=("deepseek_v2", "deepseek_v3", "deepseek_v4", "glm4_moe_lite", "glm_moe_dsa", "kimi_k2"),
        is_in=lambda provider: provider.multi_latent_attention,
        why="decode runs FlashMLA and training runs FlashAttention: two kernels with two orders of addition",
        source=f"{_ATTENTION} calls flash_mla_with_kvcache",
    ),
    Unsupported(
        code="ZK081",
        feature="Mamba layers",
        model_types=SSM_MODEL_TYPES,
        is_in=_has_mamba_layers,
        why="decode updates the state token by token and training scans it in chunks; megatron-core 0.19.2 has "
        "no decode that repeats the training scan",
        source="megatron-core 0.19.2 ssm/mamba_mixer.py",
    ),
    Unsupported(
        code="ZK082",
        feature="linear or sparse attention",
        model_types=("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"),
        is_in=lambda provider: provider.experimental_attention_variant is not None,
        why="gated delta net and sparse attention have chunked kernels for training and others for decode",
        source="megatron-core 0.19.2 TransformerConfig.experimental_attention_variant; megatron-bridge 0.6.2 "
        "models/qwen",
    ),
    Unsupported(
        code="ZK083",
        feature="sliding-window attention",
        model_types=("gemma2", "gemma3_text", "gemma4_text", "gpt_oss", "mimo_v2_flash", "step3p5"),
        is_in=_has_window,
        why="Transformer Engine and generation's engine spell a window differently to FlashAttention-4, which "
        "has already gone wrong silently for no window at all (ZG020); no window was measured",
        source=f"{_ATTENTION}; flash-attn-4 4.0.0b30 cute/interface.py, _resolve_causal_local_window",
    ),
    Unsupported(
        code="ZK084",
        feature="attention sinks",
        model_types=("gpt_oss", "mimo_v2_flash"),
        is_in=lambda provider: provider.softmax_type != "vanilla",
        why="generation corrects the output after the kernel, training has the sink inside the softmax",
        source=f"{_ATTENTION} calls _apply_sink_softmax_correction_varlen",
    ),
    Unsupported(
        code="ZK085",
        feature="a vision tower",
        model_types=("qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "gemma3", "gemma4"),
        is_in=lambda provider: getattr(provider, "vision_config", None) is not None,
        why="the tower's convolution and bidirectional attention have no batch-invariant kernels, and the job samples "
        "token ids only",
        source="megatron-bridge 0.6.2 models/*_vl, vision_config",
    ),
    Unsupported(
        code="ZK086",
        feature="a norm other than RMSNorm",
        model_types=("nemotron",),
        is_in=lambda provider: provider.normalization != "RMSNorm",
        why="the invariant norm kernels cover RMSNorm; LayerNorm falls back to Transformer Engine's own, "
        "unmeasured here",
        source="megatron-core 0.19.2 transformer/custom_layers/batch_invariant_kernels.py",
    ),
    Unsupported(
        code="ZK087",
        feature="multi-token prediction layers",
        model_types=(),
        is_in=lambda provider: bool(provider.mtp_num_layers),
        why="the provider took them from the checkpoint; generation does not run them, and no proof covers them",
        source="megatron-bridge 0.6.2 models/conversion/model_bridge.py maps num_nextn_predict_layers to "
        "mtp_num_layers",
    ),
    Unsupported(
        code="ZK088",
        feature="dropout",
        model_types=(),
        is_in=lambda provider: provider.attention_dropout != 0.0 or provider.hidden_dropout != 0.0,
        why="dropout is drawn in training only",
        source="megatron-core 0.19.2 transformer/transformer_config.py",
    ),
)


def check_provider(provider: Any) -> Findings:
    """Every row that a resolved Megatron-Bridge provider (after `finalize`) violates."""
    return Findings(
        violations=tuple(
            f"error[{row.code}]: {type(provider).__name__} has {row.feature}, zero-KL needs a model without it\n"
            f"  why:    {row.why}\n"
            f"  source: {row.source}"
            for row in UNSUPPORTED
            if row.is_in(provider)
        )
    )

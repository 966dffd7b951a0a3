"""Kernels, recompute, fusions. Owns the provider fields that trade memory or speed."""

from typing import Any

from launcher.schema import PlatformKind, RunConfig


def provider_fields(config: RunConfig) -> dict[str, Any]:
    """Attention backend, implementation, sequence length, batch-invariant mode."""
    performance = config.performance
    fields: dict[str, Any] = {
        "seq_length": config.model.seq_length,
        "transformer_impl": performance.transformer_impl,
        "calculate_per_token_loss": True,
        "inference_sampling_seed": config.job.seed,
    }
    if config.platform.kind is not PlatformKind.cpu:
        fields["attention_backend"] = performance.attention_backend
        fields["flash_attention_version"] = performance.flash_attention_version
        fields["batch_invariant_mode"] = config.zero_kl.batch_invariant_mode
    return {name: value for name, value in fields.items() if value is not None}

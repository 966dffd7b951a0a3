"""What trades memory or speed and should not change values: kernels, recompute, fusions, graphs, offloading."""

from dataclasses import dataclass
from enum import Enum


class AttentionBackend(Enum):
    """`AttnBackend` of megatron-core."""

    flash = "flash"
    fused = "fused"
    unfused = "unfused"
    local = "local"
    auto = "auto"


class TransformerImpl(Enum):
    """`transformer_impl` of megatron-core."""

    local = "local"
    transformer_engine = "transformer_engine"


@dataclass(frozen=True, kw_only=True)
class PerformanceConfig:
    """null leaves Bridge's default."""

    attention_backend: AttentionBackend = AttentionBackend.auto
    """Which attention kernel Transformer Engine may take."""

    flash_attention_version: int | None = None
    """2, 3 or 4. null: the newest that is installed."""

    transformer_impl: TransformerImpl = TransformerImpl.transformer_engine
    """Whose layers the model is built of."""

    micro_batch_size: int = 4
    """Sequences per forward pass in training and in scoring."""

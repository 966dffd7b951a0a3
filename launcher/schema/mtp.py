"""Multi-token prediction. Megatron-Core's spelling."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class MtpConfig:
    """Extra prediction heads of the model; everything but `mtp_num_layers` is read only where heads exist."""

    mtp_num_layers: int | None = None
    """Prediction layers. null: none. (0 is not null to megatron-core.)"""

    mtp_loss_scaling_factor: float | None = None
    """Weight of the heads' loss beside the main loss. null: the provider's."""

    mtp_use_repeated_layer: bool | None = None
    """Apply one prediction layer again and again instead of several. null: the provider's."""

    mtp_detach_heads: bool | None = None
    """Train the heads only: their loss sends no gradient into the model. null: the provider's."""

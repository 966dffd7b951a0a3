"""Multi-token prediction."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class MtpConfig:
    """Extra prediction heads of the model."""

    mtp_num_layers: int | None = None
    """Prediction layers. null: none. (0 is not null to megatron-core.)"""

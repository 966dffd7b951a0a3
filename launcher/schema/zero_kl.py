"""Zero train/generation KL: whether it is required, and which kernels are to give it."""

from dataclasses import dataclass
from enum import Enum


class Backend(Enum):
    """Whose batch-invariant kernels are switched on."""

    none = "none"
    te_native = "te_native"
    megatron = "megatron"
    cpu_reference = "cpu_reference"


@dataclass(frozen=True, kw_only=True)
class ZeroKlConfig:
    """Set by the zero_kl presets."""

    required: bool = False
    """Fail (exit 5) unless every log-probability is equal to the bit; also switches the recipe's rules on."""

    backend: Backend = Backend.none
    """none: the platform's ordinary kernels (the negative control)."""

    batch_invariant_mode: bool = False
    """megatron-core's field of that name."""

    batch_invariant_collective: bool = False
    """Sums over tensor-parallel ranks in the order of the ranks; upstream's word for it (after 0.19.2)."""

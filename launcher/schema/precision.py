"""Number formats of weights, pipeline and FP8."""

from dataclasses import dataclass
from enum import Enum


class Dtype(Enum):
    """A torch dtype by its own name."""

    bfloat16 = "bfloat16"
    float16 = "float16"
    float32 = "float32"


@dataclass(frozen=True, kw_only=True)
class PrecisionConfig:
    """Precision of the training model; generation uses the same."""

    dtype: Dtype = Dtype.bfloat16
    """Parameters and activations."""

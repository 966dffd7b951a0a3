"""Number formats of weights, pipeline and FP8. Megatron-Core's spelling."""

from dataclasses import dataclass
from enum import Enum


class Dtype(Enum):
    """A torch dtype by its own name."""

    bfloat16 = "bfloat16"
    float16 = "float16"
    float32 = "float32"


class Fp8Format(Enum):
    """`fp8` of megatron-core: e4m3 everywhere, or e5m2 for output gradients (hybrid)."""

    e4m3 = "e4m3"
    hybrid = "hybrid"


class Fp8Recipe(Enum):
    """`fp8_recipe` of megatron-core, less `custom`, which needs a Python callable."""

    tensorwise = "tensorwise"
    delayed = "delayed"
    mxfp8 = "mxfp8"
    blockwise = "blockwise"


class AmaxAlgorithm(Enum):
    """`fp8_amax_compute_algo` of megatron-core."""

    most_recent = "most_recent"
    max = "max"


@dataclass(frozen=True, kw_only=True)
class PrecisionConfig:
    """Precision of the training model; generation uses the same. The other FP8 fields are read only with `fp8` set,
    and null leaves megatron-core's default."""

    dtype: Dtype = Dtype.bfloat16
    """Parameters and activations."""

    pipeline_dtype: Dtype | None = None
    """Activations sent between pipeline stages. null: as `dtype`."""

    fp8: Fp8Format | None = None
    """Compute linear layers in FP8 (Transformer Engine). null: off."""

    fp8_recipe: Fp8Recipe | None = None
    """How FP8 scales are found. mxfp8 needs Blackwell."""

    fp8_param: bool | None = None
    """Keep weights in FP8. Parameter gathering in FP8, and with mxfp8 the reuse of the gradient buffer, follow."""

    fp8_margin: int | None = None
    """Powers of two left free above the largest value (delayed recipe)."""

    fp8_amax_history_len: int | None = None
    """Steps whose largest values are remembered (delayed recipe)."""

    fp8_amax_compute_algo: AmaxAlgorithm | None = None
    """Which of the remembered values counts (delayed recipe)."""

    fp8_wgrad: bool | None = None
    """Compute weight gradients in FP8 too."""

    fp8_dot_product_attention: bool | None = None
    """Compute attention's two products in FP8 too."""

    fp8_multi_head_attention: bool | None = None
    """Hand FP8 tensors from the projections to attention."""

    first_last_layers_bf16: bool | None = None
    """Keep the first and the last layers in BF16."""

    num_layers_at_start_in_bf16: int | None = None
    """First layers kept in BF16, with first_last_layers_bf16."""

    num_layers_at_end_in_bf16: int | None = None
    """Last layers kept in BF16, with first_last_layers_bf16."""

"""Number formats of the model. Owns the dtype and FP8 fields of the provider, and the rules that tie them together.

What follows for the optimizer and for data parallelism is in `megatron_setup.optimizer`. Torch-free.
"""

from collections.abc import Mapping
from typing import Any

from launcher.requirement import (
    KNOWN_ARCHITECTURE,
    Check,
    Condition,
    Finding,
    OneOf,
    Requirement,
    Subject,
    show,
)
from launcher.schema import Dtype, PlatformKind, PrecisionConfig, RunConfig
from launcher.schema.precision import Fp8Recipe
from megatron_setup.rows import given, unread, where

_CONFIG = "megatron-core 0.19.2 transformer/transformer_config.py"
_FP8_UTILS = "megatron-core 0.19.2 fp8_utils.py, get_fp8_recipe"

_FP8 = (
    "fp8",
    "fp8_recipe",
    "fp8_param",
    "fp8_margin",
    "fp8_amax_history_len",
    "fp8_amax_compute_algo",
    "fp8_wgrad",
    "fp8_dot_product_attention",
    "fp8_multi_head_attention",
    "first_last_layers_bf16",
    "num_layers_at_start_in_bf16",
    "num_layers_at_end_in_bf16",
)

FP8_READS: Mapping[str, Any] = {f"precision.{name}": None for name in _FP8[1:]}
"""Read only where FP8 is on; with their values when off."""


def provider_fields(config: RunConfig) -> dict[str, Any]:
    """`params_dtype`, what must agree with it, and the FP8 settings that are given."""
    precision, dtype = config.precision, config.precision.dtype
    return {
        "params_dtype": dtype,
        "pipeline_dtype": precision.pipeline_dtype or dtype,
        "autocast_dtype": dtype,
        "bf16": dtype is Dtype.bfloat16,
        "fp16": dtype is Dtype.float16,
        **given(precision, names=_FP8),
    }


def fp8_recipe(precision: PrecisionConfig) -> Fp8Recipe:
    """The recipe in force where FP8 is on: megatron-core's default is delayed."""
    return precision.fp8_recipe or Fp8Recipe.delayed


def row_tile(recipe: Fp8Recipe) -> int:
    """Rows that an FP8 tensor must come in multiples of: 128 of a block, 32 of an MX block, 16 of a plain GEMM."""
    return {Fp8Recipe.blockwise: 128, Fp8Recipe.mxfp8: 32}.get(recipe, 16)


def _as_computed(subject: Subject) -> Finding | None:
    precision = subject.config.precision
    if precision.pipeline_dtype in (None, precision.dtype):
        return None
    return Finding(
        found=show(precision.pipeline_dtype),
        wanted=f"null or precision.dtype ({show(precision.dtype)})",
        hints=("precision.pipeline_dtype=null",),
    )


def _fits_a_stage(key: str) -> Check:
    """0 up to the layers of a pipeline stage, as megatron-core counts them (rounded down)."""

    def test(subject: Subject) -> Finding | None:
        found, shape = subject.value(key), subject.architecture
        assert shape is not None, "the row's condition"
        stages = subject.config.parallelism.pipeline_model_parallel_size
        most = shape.num_layers // stages
        if found is None or 0 <= found <= most:
            return None
        return Finding(
            found=show(found),
            wanted=f"0 to {most}",
            arithmetic=f"{shape.num_layers} layers / pipeline {stages} = {most} a stage",
            hints=(f"{key}={max(0, min(found, most))}",),
        )

    return Check("0 up to the layers of a stage", test)


NO_FP8 = where("megatron-core", text="precision.fp8 is null", test=lambda c: c.precision.fp8 is None)
FP8 = where("megatron-core", text="precision.fp8 is set", test=lambda c: c.precision.fp8 is not None)
DELAYED = FP8 & where("", text="the recipe is delayed", test=lambda c: fp8_recipe(c.precision) is Fp8Recipe.delayed)
NOT_DELAYED = FP8 & where(
    "", text="the recipe is not delayed", test=lambda c: fp8_recipe(c.precision) is not Fp8Recipe.delayed
)
ALL_LAYERS = FP8 & where(
    "", text="first_last_layers_bf16 is not true", test=lambda c: c.precision.first_last_layers_bf16 is not True
)
ON_HOPPER = Condition(
    who="Hopper",
    text="platform is hopper",
    test=lambda s: s.config.platform.kind is PlatformKind.hopper,
)

REQUIREMENTS: tuple[Requirement, ...] = (
    Requirement(
        code="PR001",
        key="precision.pipeline_dtype",
        want=Check("null or precision.dtype", _as_computed),
        why="a stage sends what it computed; the next one would read the bytes as another dtype",
        source="megatron-core 0.19.2 pipeline_parallel/p2p_communication.py",
        reads=("precision.dtype",),
    ),
    *unread(
        {f"PR{10 + i:03d}": key for i, key in enumerate(FP8_READS)},
        when=NO_FP8,
        why="it is read only with precision.fp8; fp8_param without it is an error upstream, the others are ignored",
        source=_CONFIG,
        reads=("precision.fp8",),
    ),
    *unread(
        {
            "PR021": "precision.fp8_margin",
            "PR022": "precision.fp8_amax_history_len",
            "PR023": "precision.fp8_amax_compute_algo",
            "PR024": "precision.fp8_wgrad",
        },
        when=NOT_DELAYED,
        why="only the delayed recipe is built with it; the others ignore it",
        source=_FP8_UTILS,
        reads=("precision.fp8", "precision.fp8_recipe"),
    ),
    Requirement(
        code="PR025",
        key="precision.first_last_layers_bf16",
        want=OneOf((None, False)),
        when=DELAYED,
        why="delayed scaling does not support first and last layers in BF16",
        source=_CONFIG,
        reads=("precision.fp8", "precision.fp8_recipe"),
    ),
    *unread(
        {"PR026": "precision.num_layers_at_start_in_bf16", "PR027": "precision.num_layers_at_end_in_bf16"},
        when=ALL_LAYERS,
        why="it counts layers only where first_last_layers_bf16 is true",
        source=_CONFIG,
        reads=("precision.fp8", "precision.first_last_layers_bf16"),
    ),
    *(
        Requirement(
            code=code,
            key=key,
            want=_fits_a_stage(key),
            when=FP8 & KNOWN_ARCHITECTURE,
            why="the layers kept in BF16 lie within one pipeline stage",
            source=_CONFIG,
            reads=("precision.fp8", "parallelism.pipeline_model_parallel_size"),
        )
        for code, key in (
            ("PR028", "precision.num_layers_at_start_in_bf16"),
            ("PR029", "precision.num_layers_at_end_in_bf16"),
        )
    ),
    Requirement(
        code="PR030",
        key="precision.fp8_recipe",
        want=OneOf((Fp8Recipe.tensorwise, Fp8Recipe.delayed, Fp8Recipe.blockwise, None)),
        when=ON_HOPPER,
        why="MX block scaling is an instruction of sm_100 and newer",
        source="transformer-engine 2.20.2 pytorch/quantization.py, _compute_mxfp8_support",
        reads=("platform.kind",),
    ),
)

"""Number formats of the model. Owns the dtype fields of the provider."""

from typing import Any

from launcher.schema import Dtype, RunConfig


def provider_fields(config: RunConfig) -> dict[str, Any]:
    """`params_dtype` and what must agree with it."""
    dtype = config.precision.dtype
    return {
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "autocast_dtype": dtype,
        "bf16": dtype is Dtype.bfloat16,
        "fp16": dtype is Dtype.float16,
    }

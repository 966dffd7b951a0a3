"""Mixture of experts. Owns the `moe_*` fields of the provider."""

from typing import Any

from launcher.schema import RunConfig


def provider_fields(config: RunConfig) -> dict[str, Any]:
    """Every `moe_*` setting that is not null; the names are the provider's own."""
    moe = config.moe
    fields = {
        "moe_token_dispatcher_type": moe.moe_token_dispatcher_type,
        "moe_permute_fusion": moe.moe_permute_fusion,
        "moe_router_dtype": moe.moe_router_dtype,
        "moe_grouped_gemm": moe.moe_grouped_gemm,
    }
    return {name: value for name, value in fields.items() if value is not None}

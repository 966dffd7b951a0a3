"""Mixture of experts: router, dispatcher, experts. Megatron-Core's spelling."""

from dataclasses import dataclass
from enum import Enum


class TokenDispatcher(Enum):
    """`moe_token_dispatcher_type` of megatron-core."""

    allgather = "allgather"
    alltoall = "alltoall"
    flex = "flex"


@dataclass(frozen=True, kw_only=True)
class MoeConfig:
    """null leaves the checkpoint's own value (Bridge's provider). All is ignored by a dense model."""

    moe_token_dispatcher_type: TokenDispatcher = TokenDispatcher.alltoall
    """How tokens reach the experts' ranks."""

    moe_permute_fusion: bool = False
    """Fuse the permutation kernels (Transformer Engine)."""

    moe_router_dtype: str | None = "fp32"
    """Number format of the router's matrix product: fp32, fp64, or null for the model's own."""

    moe_grouped_gemm: bool | None = None
    """Compute a rank's experts in one grouped GEMM."""

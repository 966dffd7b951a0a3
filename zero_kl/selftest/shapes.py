"""The sizes of the model's own products on one rank, out of its architecture and layout. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.schema import Architecture, RunConfig


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """Widths on one tensor-parallel rank; expert sizes are 0 in a dense model."""

    hidden_size: int
    num_heads: int
    num_query_groups: int
    head_dim: int
    ffn_hidden_size: int
    vocab_size: int
    num_experts: int
    topk: int
    moe_ffn_hidden_size: int

    @property
    def query_width(self) -> int:
        """Columns of all queries."""
        return self.num_heads * self.head_dim

    @property
    def qkv_width(self) -> int:
        """Columns of queries, keys and values."""
        return (self.num_heads + 2 * self.num_query_groups) * self.head_dim


def shapes_of(config: RunConfig, *, architecture: Architecture) -> Shapes:
    """The shapes on a rank; a group that is split further than once stays whole, as Megatron keeps it."""
    ranks = config.parallelism.tensor_model_parallel_size
    experts = architecture.num_moe_experts or 0
    return Shapes(
        hidden_size=architecture.hidden_size,
        num_heads=architecture.num_attention_heads // ranks,
        num_query_groups=max(1, architecture.num_query_groups // ranks),
        head_dim=architecture.kv_channels,
        ffn_hidden_size=architecture.ffn_hidden_size // ranks,
        vocab_size=-(-architecture.vocab_size // ranks),
        num_experts=experts // config.parallelism.expert_model_parallel_size,
        topk=architecture.moe_router_topk or 0,
        moe_ffn_hidden_size=architecture.moe_ffn_hidden_size or 0,
    )

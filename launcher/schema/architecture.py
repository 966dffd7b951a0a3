"""The shape of a model as Hugging Face's config.json states it: what the layout rules do arithmetic on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """Sizes of a decoder, in megatron-core's spelling. `num_moe_experts` is None for a dense model."""

    model_type: str
    num_layers: int
    hidden_size: int
    num_attention_heads: int
    num_query_groups: int
    kv_channels: int
    ffn_hidden_size: int
    vocab_size: int
    max_position_embeddings: int
    num_moe_experts: int | None
    moe_router_topk: int | None
    moe_ffn_hidden_size: int | None
    share_embeddings_and_output_weights: bool


def architecture_from_hf_config(config: Mapping[str, Any]) -> Architecture | None:
    """The shape in a Hugging Face config mapping, or None where a size is missing (a nested or foreign layout)."""
    try:
        heads = int(config["num_attention_heads"])
        hidden = int(config["hidden_size"])
        experts = config.get("num_experts", config.get("num_local_experts", config.get("n_routed_experts")))
        return Architecture(
            model_type=str(config["model_type"]),
            num_layers=int(config["num_hidden_layers"]),
            hidden_size=hidden,
            num_attention_heads=heads,
            num_query_groups=int(config.get("num_key_value_heads") or heads),
            kv_channels=int(config.get("head_dim") or hidden // heads),
            ffn_hidden_size=int(config["intermediate_size"]),
            vocab_size=int(config["vocab_size"]),
            max_position_embeddings=int(config["max_position_embeddings"]),
            num_moe_experts=None if experts is None else int(experts),
            moe_router_topk=None if experts is None else int(config["num_experts_per_tok"]),
            moe_ffn_hidden_size=None
            if experts is None
            else int(config.get("moe_intermediate_size") or config["intermediate_size"]),
            share_embeddings_and_output_weights=bool(config.get("tie_word_embeddings", False)),
        )
    except KeyError:
        return None

"""Hugging Face configurations of tiny models, one for each architecture the tests run, by name."""

from typing import Any

_SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 384,
    "max_position_embeddings": 256,
}

HF_CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **_SIZES, "tie_word_embeddings": False},
    "qwen2": {"model_type": "qwen2", **_SIZES, "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", **_SIZES, "head_dim": 16, "tie_word_embeddings": False},
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        **_SIZES,
        "head_dim": 16,
        "num_experts": 8,
        "num_experts_per_tok": 4,  # with two, a sum has one order only
        "moe_intermediate_size": 64,
        "norm_topk_prob": True,
        "tie_word_embeddings": False,
    },
    "deepseek_v3": {
        "model_type": "deepseek_v3",
        **_SIZES,
        "num_key_value_heads": 4,
        "q_lora_rank": 32,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
        "first_k_dense_replace": 1,  # one dense layer and one of experts
        "n_routed_experts": 8,
        "num_experts_per_tok": 4,
        "n_shared_experts": 1,
        "moe_intermediate_size": 64,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "tie_word_embeddings": False,
    },
}

SERVED = tuple(name for name in HF_CONFIGS if name != "deepseek_v3")
"""Those that Megatron's dynamic engine generates with: it has no multi-latent attention on a CPU."""

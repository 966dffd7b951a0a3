"""Fusions of Transformer Engine that Bridge turns on for some models, and that megatron-core refuses without it."""

from __future__ import annotations

from megatron.core.transformer.transformer_config import TransformerConfig

SWITCHES = ("apply_rope_fusion", "moe_permute_fusion", "gradient_accumulation_fusion")
"""Llama's and the Qwen MoE models' bridges turn these on. Off, megatron-core does the same in torch."""

_post_init = TransformerConfig.__post_init__


def post_init_without_fusions(config: TransformerConfig) -> None:
    """`TransformerConfig.__post_init__` with the switches off.

    Bridge's `import_ckpt` finalizes the provider itself, so there is no place to set them before. A run that asks for
    one is told by the read-back after `finalize()`.
    """
    for name in SWITCHES:
        setattr(config, name, False)
    _post_init(config)

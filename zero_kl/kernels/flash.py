"""FlashAttention-4 that megatron-core takes for absent although its call is the same: one patch row, for b19 alone."""

from __future__ import annotations

import importlib.metadata

from launcher.patches import Patch, Rung

_B19 = "4.0.0b19"

PATCHES = (
    Patch(
        targets=("megatron.core.transformer.attention.HAVE_FA4",),
        replacement=True,
        why="megatron-core takes flash-attn-4 below b20 for absent, and generation then refuses "
        "flash_attention_version=4, though b19's flash_attn_varlen_func has b20's signature",
        upstream="megatron-core 0.19.2, megatron/core/transformer/attention.py, _MIN_FA4_VERSION",
        tested_versions={"megatron-core": "==0.19.2", "flash-attn-4": f"=={_B19}"},
        remove_when="the recipe asks for b20 or later, or megatron-core's bound is lower",
        rung=Rung.MONKEYPATCH,
        rung_reason="the bound is a constant of the module, compared once while it is imported; no setting reads it",
    ),
)


def patches() -> tuple[Patch, ...]:
    """The row where b19 is installed; nothing for a version that passes megatron-core's own gate, or is absent."""
    try:
        installed = importlib.metadata.version("flash-attn-4")
    except importlib.metadata.PackageNotFoundError:
        return ()
    return PATCHES if installed == _B19 else ()

"""LoRA on the reference backend: an adapter beside a fused norm and linear reads what the norm made."""

from __future__ import annotations

from typing import Any

from megatron.bridge.peft.utils import get_adapter_attributes_from_linear
from torch.nn import Module

from megatron_setup.cpu.layers import LayerNormColumnParallelLinear


def adapter_attributes(m: Module, is_expert: bool = False, sequence_parallel_input_regather: bool = False) -> Any:
    """Upstream's sizes of the linear. Also tells a fused one to give its norm's output, as upstream tells TE's."""
    if isinstance(m, LayerNormColumnParallelLinear):
        m.return_layernorm_output = True
    return get_adapter_attributes_from_linear(
        m, is_expert=is_expert, sequence_parallel_input_regather=sequence_parallel_input_regather
    )

"""Norm, fused norm + linear, and the spec provider of the reference backend.

The parameters have the names of the Transformer Engine spec, so model code, Bridge's weight mappings and checkpoints
are the production ones; only the arithmetic is plain torch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from megatron.core.models.backends import BackendSpecProvider
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.moe.experts import SequentialMLP
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from torch.nn.functional import layer_norm, rms_norm

from launcher.errors import ConfigError
from megatron_setup.cpu.attention import CoreAttention

_NORMS = {"RMSNorm": torch.nn.RMSNorm, "LayerNorm": torch.nn.LayerNorm}


class Norm:
    """Makes torch's RMSNorm or LayerNorm, its weights marked for the sum of gradients under sequence parallelism.

    A class because megatron-core calls `build_module` on it, which returns functions unbuilt.
    """

    def __new__(
        cls, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, has_residual: bool = False
    ) -> torch.nn.Module:
        """The norm over the last dimension; `has_residual` only allows TE to fuse, and is ignored."""
        _check_norm(config)
        norm = _NORMS[config.normalization](hidden_size, eps=eps, dtype=config.params_dtype)
        _mark_sequence_parallel(*norm.parameters(), config=config)
        return norm


class LayerNormColumnParallelLinear(ColumnParallelLinear):
    """A norm and a column-parallel linear in one module: weight, bias, layer_norm_weight, layer_norm_bias.

    Bridge knows by the class name's ending which of them are split and which replicated.
    """

    config: TransformerConfig
    return_layernorm_output = False
    """Transformer Engine's switch: the output comes as a pair with what the norm made, for LoRA's adapter."""

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        config: TransformerConfig,
        init_method: Callable[[Tensor], Any],
        bias: bool = True,
        gather_output: bool = False,
        stride: int = 1,
        skip_bias_add: bool = False,
        is_expert: bool = False,
        tp_comm_buffer_name: str | None = None,
        tp_group: torch.distributed.ProcessGroup | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(
            input_size,
            output_size,
            config=config,
            init_method=init_method,
            bias=bias,
            gather_output=gather_output,
            stride=stride,
            skip_bias_add=skip_bias_add,
            is_expert=is_expert,
            tp_comm_buffer_name=tp_comm_buffer_name,
            tp_group=tp_group,
            name=name,
        )
        _check_norm(config)
        self.layer_norm_weight = torch.nn.Parameter(torch.ones(input_size, dtype=config.params_dtype))
        if config.normalization == "LayerNorm":
            self.layer_norm_bias = torch.nn.Parameter(torch.zeros(input_size, dtype=config.params_dtype))
        else:
            self.register_parameter("layer_norm_bias", None)
        _mark_sequence_parallel(self.layer_norm_weight, self.layer_norm_bias, config=config)

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]  a pair, as Transformer Engine's
        self, input_: Tensor, weight: Tensor | None = None, runtime_gather_output: bool | None = None
    ) -> tuple[Tensor | tuple[Tensor, Tensor], Tensor | None]:
        """[s, b, input_size] -> [s, b, output_size / tp], and the bias where it is not yet added."""
        shape, eps = input_.shape[-1:], self.config.layernorm_epsilon
        if self.config.normalization == "RMSNorm":
            normed = rms_norm(input_, shape, self.layer_norm_weight, eps)
        else:
            normed = layer_norm(input_, shape, self.layer_norm_weight, self.layer_norm_bias, eps)
        output, bias = super().forward(normed, weight, runtime_gather_output)
        return ((output, normed) if self.return_layernorm_output else output), bias


def _check_norm(config: TransformerConfig) -> None:
    if config.layernorm_zero_centered_gamma or config.normalization not in _NORMS:
        raise ConfigError(
            "error: the CPU platform's reference norm computes RMSNorm and LayerNorm with plain weights, not "
            f"normalization={config.normalization}, "
            f"layernorm_zero_centered_gamma={config.layernorm_zero_centered_gamma}"
        )


def _mark_sequence_parallel(*params: Tensor | None, config: TransformerConfig) -> None:
    """`finalize_model_grads` sums the gradients of marked weights over the tensor-parallel ranks."""
    for param in params:
        if param is not None:
            param.sequence_parallel = config.sequence_parallel  # pyright: ignore[reportAttributeAccessIssue]


class SpecProvider(BackendSpecProvider):
    """The modules of the Transformer Engine spec, in torch. The methods are `TESpecProvider`'s."""

    def linear(self) -> type:
        """The unsplit linear of multi-latent attention's down projections."""
        return ColumnParallelLinear

    def column_parallel_linear(self) -> type:
        """megatron-core's own."""
        return ColumnParallelLinear

    def row_parallel_linear(self) -> type:
        """megatron-core's own."""
        return RowParallelLinear

    def fuse_layernorm_and_linear(self) -> bool:
        """As Transformer Engine, so that the parameter names are the same."""
        return True

    def column_parallel_layer_norm_linear(self) -> type:
        """Norm and linear in one."""
        return LayerNormColumnParallelLinear

    def layer_norm(self, rms_norm: bool = False, for_qk: bool = False, has_residual: bool = False) -> type:
        """One norm for every place; the config says which."""
        return Norm

    def core_attention(self) -> type:
        """fp32 softmax attention."""
        return CoreAttention

    def activation_func(self) -> None:
        """None: the config's function is used."""

    def grouped_mlp_modules(self, moe_use_grouped_gemm: bool) -> Callable[..., SequentialMLP]:
        """The experts one after the other; their checkpoint keys are those of the grouped form."""
        linears = MLPSubmodules(
            linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear, activation_func=self.activation_func()
        )
        return partial(SequentialMLP, submodules=linears)

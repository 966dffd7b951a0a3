"""What every check is given: shapes, device, number format, modules, sequences. Owns how they follow from a run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from megatron.core.transformer.enums import AttnBackend
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from launcher.schema import PlatformKind, RunConfig
from zero_kl.selftest.attention import Sequences
from zero_kl.selftest.modules import Modules, Torch, TransformerEngine, random_values
from zero_kl.selftest.shapes import Shapes

LENGTHS = (1, 63, 64, 65, 200, 1100)
"""Tokens of the attention's sequences. The last is long enough for FlashAttention to split its keys where it may."""

CPU_LENGTHS = (1, 15, 16, 33, 65, 100)
"""Around the tiles of `zero_kl.cpu_kernels`."""

TOKENS = 2048
"""Rows of a large batch."""

BATCHES = (64, 192, 1024)
"""Rows of smaller ones: whole multiples of 64, to which training and the engine fill their batches up."""


@dataclass(frozen=True)
class Bench:
    """One node's kernels at one model's shapes. The kernels of `zero_kl.backend` are switched on by the caller."""

    config: RunConfig
    shapes: Shapes

    @cached_property
    def device(self) -> torch.device:
        """This rank's GPU, or the CPU."""
        return torch.device("cpu") if self._on_cpu else torch.device("cuda", torch.cuda.current_device())

    @property
    def _on_cpu(self) -> bool:
        return self.config.platform.kind is PlatformKind.cpu

    @property
    def dtype(self) -> torch.dtype:
        """The model's number format."""
        return getattr(torch, self.config.precision.dtype.value)

    @property
    def modules(self) -> Modules:
        """Makers of the platform's layers."""
        return (Torch if self._on_cpu else TransformerEngine)(device=self.device, dtype=self.dtype)

    @cached_property
    def sequences(self) -> Sequences:
        """Queries, keys and values at the model's heads."""
        return Sequences(
            config=self.transformer_config,
            device=self.device,
            block_size=self.config.generation.block_size_tokens,
            lengths=CPU_LENGTHS if self._on_cpu else LENGTHS,
        )

    def rows(self, num_rows: int, *, width: int) -> Tensor:
        """Random rows; their number is a multiple of 64, as Megatron's batches are."""
        return random_values(num_rows, width, dtype=self.dtype, device=self.device, seed=num_rows + width)

    def weight(self, *shape: int) -> Tensor:
        """A random weight, scaled so that a row's product has values of about one."""
        values = random_values(*shape, dtype=torch.float32, device=self.device, seed=math.prod(shape))
        return (values * shape[-1] ** -0.5).to(self.dtype)

    @property
    def batches(self) -> tuple[int, ...]:
        """Rows of smaller batches. The engine's decode steps have at most `max_requests`, filled up or not."""
        return tuple(sorted({*BATCHES, min(self.config.generation.max_requests, TOKENS)}))

    @property
    def num_all_experts(self) -> int:
        """Over all ranks that share them."""
        return self.shapes.num_experts * self.config.parallelism.expert_model_parallel_size

    @cached_property
    def transformer_config(self) -> TransformerConfig:
        """One layer of this model; attention is chosen and split as the run's own configuration says."""
        performance = self.config.performance
        version: Any = performance.flash_attention_version  # upstream's literal, ours is an integer
        return TransformerConfig(
            num_layers=1,
            hidden_size=self.shapes.hidden_size,
            num_attention_heads=self.shapes.num_heads,
            num_query_groups=self.shapes.num_query_groups,
            kv_channels=self.shapes.head_dim,
            attention_dropout=0.0,
            hidden_dropout=0.0,
            add_bias_linear=False,
            bf16=self.dtype is torch.bfloat16,
            fp16=self.dtype is torch.float16,
            params_dtype=self.dtype,
            num_moe_experts=self.num_all_experts or None,
            moe_router_topk=self.shapes.topk or 2,
            moe_router_pre_softmax=self.shapes.topk == 1,  # upstream refuses the other order there
            moe_token_dispatcher_type="alltoall",
            attention_backend=AttnBackend[performance.attention_backend.value],
            flash_attention_version=version,
            batch_invariant_mode=self.config.zero_kl.batch_invariant_mode,
        )

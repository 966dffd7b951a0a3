"""The modules whose rows are tested: Transformer Engine's on a GPU, plain torch on the CPU platform.

Attention is not here: both platforms put theirs behind megatron-core's own names (`zero_kl.selftest.attention`).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm

_EPS = 1e-6

type Op = Callable[[Tensor], Tensor]
type GroupedOp = Callable[[Tensor, list[int]], Tensor]


class Modules(Protocol):
    """Makers of operations with random weights of their own; rows are [rows, width] on the device."""

    def linear(self, width_in: int, *, width_out: int) -> Op:
        """rows @ weightᵀ."""
        ...

    def norm_linear(self, width_in: int, *, width_out: int) -> Op:
        """RMSNorm and the product behind it, in one module."""
        ...

    def norm(self, width: int) -> Op:
        """RMSNorm."""
        ...

    def grouped_linear(self, num_groups: int, *, width_in: int, width_out: int) -> GroupedOp:
        """One product per group of rows; the second argument is the number of rows of each."""
        ...


@dataclass(frozen=True, kw_only=True)
class Torch:
    """What the CPU platform's layers compute."""

    device: torch.device
    dtype: torch.dtype

    def linear(self, width_in: int, *, width_out: int) -> Op:
        weight = self._weight(width_out, width_in)
        return lambda rows: linear(rows, weight)

    def norm_linear(self, width_in: int, *, width_out: int) -> Op:
        norm, product = self.norm(width_in), self.linear(width_in, width_out=width_out)
        return lambda rows: product(norm(rows))

    def norm(self, width: int) -> Op:
        weight = self._weight(width)
        return lambda rows: rms_norm(rows, (width,), weight, _EPS)

    def grouped_linear(self, num_groups: int, *, width_in: int, width_out: int) -> GroupedOp:
        products = [self.linear(width_in, width_out=width_out) for _ in range(num_groups)]
        return lambda rows, splits: torch.cat([f(part) for f, part in zip(products, rows.split(splits), strict=True)])

    def _weight(self, *shape: int) -> Tensor:
        return random_values(*shape, dtype=self.dtype, device=self.device)


@dataclass(frozen=True, kw_only=True)
class TransformerEngine:
    """What megatron-core's Transformer Engine layers call."""

    device: torch.device
    dtype: torch.dtype

    def linear(self, width_in: int, *, width_out: int) -> Op:
        return self._filled(self._te().Linear(width_in, width_out, bias=False, **self._where()))

    def norm_linear(self, width_in: int, *, width_out: int) -> Op:
        made = self._te().LayerNormLinear(
            width_in, width_out, eps=_EPS, bias=False, normalization="RMSNorm", **self._where()
        )
        return self._filled(made)

    def norm(self, width: int) -> Op:
        return self._filled(self._te().RMSNorm(width, eps=_EPS, dtype=self.dtype, device=self.device))

    def grouped_linear(self, num_groups: int, *, width_in: int, width_out: int) -> GroupedOp:
        made = self._te().GroupedLinear(num_groups, width_in, width_out, bias=False, **self._where())
        return self._filled(made)

    def _where(self) -> dict[str, Any]:
        return {"params_dtype": self.dtype, "device": self.device}

    def _te(self) -> Any:
        """Imported by name: Transformer Engine is not installed where this is read by a type checker or tested."""
        return importlib.import_module("transformer_engine.pytorch")

    def _filled(self, module: Any) -> Any:
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.copy_(random_values(*parameter.shape, dtype=self.dtype, device=self.device))
        return module


def random_values(*shape: int, dtype: torch.dtype, device: torch.device, seed: int = 0) -> Tensor:
    """Standard normal values."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float32, device=device).to(dtype)

"""CPU offload of the optimizer where there is no GPU: what its parameters are taken for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from megatron.core.optimizer.cpu_offloading.hybrid_optimizer import HybridDeviceOptimizer
from torch.overrides import TorchFunctionMode

_IS_CUDA = vars(torch._C.TensorBase)["is_cuda"].__get__
_split_params = HybridDeviceOptimizer._get_sub_optimizer_param_groups


def split_params(optimizer: HybridDeviceOptimizer, offload_fraction: float) -> Any:
    """`_get_sub_optimizer_param_groups`, with every parameter on a GPU and every copy made by `.cpu()` on the CPU."""
    with _OnlyCopiesAreOnTheCpu():
        return _split_params(optimizer, offload_fraction)


class _OnlyCopiesAreOnTheCpu(TorchFunctionMode):
    """`is_cuda` is false of what came out of `.cpu()`, and of what was made of that; true of everything else."""

    def __init__(self) -> None:
        super().__init__()
        self._copies: dict[int, torch.Tensor] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func == _IS_CUDA:
            return id(args[0]) not in self._copies
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and (func is torch.Tensor.cpu or id(args[0]) in self._copies):
            self._copies[id(made)] = made  # kept alive, so that no other tensor gets its id
        return made

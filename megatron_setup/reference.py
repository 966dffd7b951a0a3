"""The reference policy: the weights from before the first step, in host memory, put in force when asked for.

Owns the copy and the exchange of weights. Who computes with them is elsewhere.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from megatron.bridge.peft.adapter_wrapper import AdapterWrapper
from megatron.core.transformer.module import MegatronModule
from torch import Tensor

from megatron_setup.late_gather import parameters_gathered
from megatron_setup.lora import adapters_disabled


@dataclass
class ReferenceState:
    """What training changes of each chunk, by name, as it was at the start.

    Memory: one copy of those tensors on the host for as long as it lives, and on the device one tensor at a time while
    weights are exchanged. The policy's weights wait in the same host memory while the reference is in force.
    """

    _host: list[dict[str, Tensor]] | None
    _is_in_force: bool = False

    @property
    def num_bytes(self) -> int:
        """Host memory in use."""
        return sum(tensor.nbytes for chunk in self._host or [] for tensor in chunk.values())

    def free(self) -> None:
        """Give the host memory back; the reference cannot be put in force afterwards."""
        assert not self._is_in_force, "the host memory holds the policy's weights now"
        self._host = None

    @contextmanager
    def in_force(self, model: list[MegatronModule]) -> Generator[None]:
        """Within the context the model computes with the reference's weights; then with the policy's, bit for bit.

        Weights are exchanged in place: the parameters are views of the buffers of data parallelism, which a new tensor
        would leave. The optimizer is not touched, and must not step meanwhile.
        """
        assert self._host is not None, "the reference was freed"
        assert not self._is_in_force, "the reference is in force"
        with parameters_gathered(model), adapters_disabled(model):
            _exchange(model, host=self._host)
            self._is_in_force = True
            try:
                yield
            finally:
                _exchange(model, host=self._host)
                self._is_in_force = False


def reference_state(model: list[MegatronModule]) -> ReferenceState:
    """The reference is the model as it is now, its weights loaded.

    Kept is what training will change: trainable parameters and persistent buffers (the routers' expert bias). A LoRA
    adapter is not: the reference is the model without it, so beside a frozen model nothing is copied.
    """
    return ReferenceState([{name: _on_host(t) for name, t in _changing(chunk).items()} for chunk in model])


def _on_host(tensor: Tensor) -> Tensor:
    """A copy in host memory, pinned where there is a GPU to copy from."""
    host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.is_cuda)
    return host.copy_(tensor.detach())


def _changing(chunk: MegatronModule) -> dict[str, Tensor]:
    adapters = {p for m in chunk.modules() if isinstance(m, AdapterWrapper) for p in m.adapter.parameters()}
    return {
        name: tensor
        for name, tensor in _tensors(chunk).items()
        if tensor not in adapters and (tensor.requires_grad or not isinstance(tensor, torch.nn.Parameter))
    }


def _tensors(chunk: MegatronModule) -> dict[str, Tensor]:
    """Parameters and persistent buffers, which `state_dict` keeps: the others are scratch."""
    buffers = {
        f"{prefix}.{name}": buffer
        for prefix, module in chunk.named_modules()
        for name, buffer in module.named_buffers(recurse=False)
        if name not in module._non_persistent_buffers_set
    }
    return {**dict(chunk.named_parameters()), **buffers}


@torch.no_grad()
def _exchange(model: list[MegatronModule], *, host: list[dict[str, Tensor]]) -> None:
    """Swap the model's tensors with the host's, in place, and have Transformer Engine drop FP8 copies of the old."""
    for chunk, kept in zip(model, host, strict=True):
        tensors = _tensors(chunk)
        for name, other in kept.items():
            current = tensors[name].detach().clone()
            tensors[name].copy_(other)
            other.copy_(current)
        chunk.set_is_first_microbatch()

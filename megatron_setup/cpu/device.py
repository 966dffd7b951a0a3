"""`cuda` means the CPU: the function mode that moves tensors there, and stand-ins for the names of `torch.cuda`.

Owns what happens to a device, a stream, an event, a generator. Which name gets which stand-in is in `table.py`.
`torch.cuda.is_available()` stays False, so code that asks honestly gets an honest answer.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")


class CudaIsCpu(TorchFunctionMode):
    """Tensor functions asked for `device="cuda"` or pinned memory get the CPU and ordinary memory."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.to and len(args) > 1 and _is_cuda(args[1]):
            args = (args[0], CPU, *args[2:])
        if _is_cuda(kwargs.get("device")):
            kwargs["device"] = CPU
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return func(*args, **kwargs)


def _is_cuda(device: object) -> bool:
    if isinstance(device, torch.device):
        return device.type == "cuda"
    return isinstance(device, str) and device.split(":")[0] == "cuda"


def current_device() -> torch.device:
    """The CPU, so that `device=torch.cuda.current_device()` needs no interception (on a GPU it is an index)."""
    return CPU


def stay[T](thing: T, *_: object, **__: object) -> T:
    """`Tensor.cuda`, `Module.cuda`, `Tensor.pin_memory`: already there."""
    return thing


_tensor_type = torch.Tensor.type


def tensor_type(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """`Tensor.type`, but the type's name says cuda: megatron-core's optimizers accept only those names.

    Under a function mode torch looks the method up again by its name and so comes here twice.
    """
    found = _tensor_type(tensor, *args, **kwargs)
    if not isinstance(found, str) or found.startswith("torch.cuda."):
        return found
    return found.replace("torch.", "torch.cuda.", 1)


class Stream:
    """A queue of work that is always done: the CPU works in program order."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def wait(self, *_: object) -> None:
        """Nothing is pending: `synchronize`, `wait_event` and `wait_stream` return at once."""

    synchronize = wait_event = wait_stream = wait

    def record_event(self, event: Event | None = None) -> Event:
        """The event, recorded now."""
        event = event or Event()
        event.record()
        return event


class Event:
    """A point in time of the CPU."""

    def __init__(self, *_: object, **__: object) -> None:
        self._time_s = time.perf_counter()

    def record(self, *_: object) -> None:
        """The time is now."""
        self._time_s = time.perf_counter()

    def wait(self, *_: object) -> None:
        """Nothing is pending."""

    synchronize = wait

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this event to `end`, as CUDA counts them."""
        return (end._time_s - self._time_s) * 1e3


def leave_uncompiled[F: Callable[..., Any]](model: F | None = None, **_: object) -> F | Callable[[F], F]:
    """`torch.compile`, as a decorator with or without options: the function stays as it is."""
    return (lambda function: function) if model is None else model


def do_nothing(*_: object, **__: object) -> None:
    """Calls that have an effect on a GPU only."""


def set_device(device: object) -> None:
    """Nothing: a process has one device."""


def stream(*_: object) -> AbstractContextManager[None]:
    """`with torch.cuda.stream(...)`: there is one stream."""
    return nullcontext()


def current_stream(*_: object, **__: object) -> Stream:
    """The one stream."""
    return Stream()


def call_now(queued: Callable[[], Any], **_: object) -> None:
    """Run what torch would queue until CUDA is initialised, which never happens here."""
    queued()


def get_rng_state(*_: object, **__: object) -> torch.Tensor:
    """State of the CPU's generator, which stands for the GPU's as well."""
    return torch.random.get_rng_state()


def set_rng_state(state: torch.Tensor, *_: object, **__: object) -> None:
    """Set the state of the CPU's generator."""
    torch.random.set_rng_state(state)


def manual_seed(seed: int) -> None:
    """Seed the CPU's generator."""
    torch.default_generator.manual_seed(int(seed))


DEFAULT_GENERATORS = {CPU: torch.default_generator}
"""Indexed by `current_device()`, as megatron-core does."""

RESULTS: queue.Queue[Any] = queue.Queue()
"""Results of the checkpoint writer, which runs in this process (synchronous saves only)."""

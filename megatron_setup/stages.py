"""What a step of the set-up takes: time, memory of the host and of the GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

_GB = 1e9


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Seconds, and gigabytes (1e9 bytes): of this process on the host, and of torch's allocator on the GPU, after the
    step and at its highest. The GPU's are 0 on the CPU platform."""

    seconds: float
    host_gb: float
    host_peak_gb: float
    device_gb: float
    device_peak_gb: float


@contextmanager
def weighed() -> Generator[Callable[[], Stage]]:
    """Weigh the block; the function it gives returns the figures, once the block has ended.

    The host's peak is that of the process so far: Linux keeps one high-water mark, and only its owner's /proc file can
    reset it, which containers forbid.
    """
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    ended: list[float] = []

    def stage() -> Stage:
        return Stage(
            seconds=ended[0],
            host_gb=_host_gb("VmRSS"),
            host_peak_gb=_host_gb("VmHWM"),
            device_gb=torch.cuda.memory_allocated() / _GB if on_gpu else 0.0,
            device_peak_gb=torch.cuda.max_memory_allocated() / _GB if on_gpu else 0.0,
        )

    yield stage
    if on_gpu:
        torch.cuda.synchronize()
    ended.append(time.perf_counter() - started)


def _host_gb(name: str) -> float:
    """A line of /proc/self/status, which is in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) * 1024 / _GB

"""The numbers of `launcher.preflight`, read off a node with GPUs. The one place that asks CUDA about them."""

from __future__ import annotations

import ctypes
import socket

import torch

from launcher.errors import NodeError
from launcher.preflight import Gpus, does_not_answer, gpus_here, raise_if_unfit
from launcher.schema import RunConfig

_GB = 1e9


def look_at_gpus(*, own: int, num_gpus: int, shared: bool) -> Gpus:
    """What a rank on GPU `own` sees; it is the current one afterwards. Where it is not there, its memory is 0.

    Only the own GPU gets a CUDA context: eight ranks that looked at all eight would leave GBs of contexts on each.
    NCCL is asked only where ranks share GPUs: a torch that was built with it inside has no library to ask.
    """
    visible, nccl = torch.cuda.device_count(), _nccl_version() if shared else None
    if own >= visible:
        return Gpus(num_visible=visible, own=own, free_gb=0.0, total_gb=0.0, nccl=nccl)
    torch.cuda.set_device(own)
    free, total = torch.cuda.mem_get_info(own)
    others = [other for other in range(min(num_gpus, visible)) if other != own]
    unreachable = tuple(other for other in others if not torch.cuda.can_device_access_peer(own, other))
    return Gpus(
        num_visible=visible,
        own=own,
        free_gb=free / _GB,
        total_gb=total / _GB,
        unreachable=unreachable,
        nccl=nccl,
    )


def _nccl_version() -> tuple[int, int, int]:
    """Of the library that torch has loaded; `torch.cuda.nccl.version` says what torch was compiled with."""
    number = ctypes.c_int()
    if ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(number)):
        raise RuntimeError("ncclGetVersion failed")
    return number.value // 10_000, number.value // 100 % 100, number.value % 100


def take_gpu(config: RunConfig, *, local_rank: int) -> None:
    """Make this rank's GPU the process's: its own, or one that neighbouring ranks share. It is the current one then.

    Raises NodeError naming the node where the GPU is not fit for the run.
    """
    host, own = socket.gethostname(), local_rank // config.cluster.ranks_per_gpu
    try:
        gpus = look_at_gpus(own=own, num_gpus=gpus_here(config), shared=config.cluster.ranks_per_gpu > 1)
    except RuntimeError as error:  # what torch makes of every error of CUDA
        raise NodeError(does_not_answer(str(error), own=own, host=host)) from error
    raise_if_unfit(gpus, config=config, host=host)

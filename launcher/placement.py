"""Which rank this process is, and how the ranks find each other.

Rank 0 opens the rendezvous store on a port the kernel gives it and writes the address into the attempt's folder; the
others wait for that file. The port is never chosen before it is bound, and every attempt has its own.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.errors import ExperimentError
from launcher.files import write_text

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

_VARIABLES = (
    ("RANK", "LOCAL_RANK", "WORLD_SIZE"),
    ("SUBMITIT_LOCAL_GLOBALID", "SUBMITIT_LOCAL_LOCALID", "SUBMITIT_LOCAL_NTASKS"),
    ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"),
)


@dataclass(frozen=True, kw_only=True)
class Placement:
    """This process among the ranks of the run."""

    rank: int
    local_rank: int
    world_size: int


def read_placement() -> Placement:
    """From torchrun's variables, submitit's local executor or Slurm, in this order; alone where none is set."""
    for names in _VARIABLES:
        if all(name in os.environ for name in names):
            rank, local_rank, world_size = (int(os.environ[name]) for name in names)
            return Placement(rank=rank, local_rank=local_rank, world_size=world_size)
    return Placement(rank=0, local_rank=0, world_size=1)


def open_store(placement: Placement, *, address_file: Path, timeout_s: float = 300.0) -> TCPStore:
    """The rendezvous store of all ranks. Raises ExperimentError when rank 0 does not show up in time."""
    from datetime import timedelta

    from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

    timeout = timedelta(seconds=timeout_s)
    if placement.rank == 0:
        host = "127.0.0.1" if placement.world_size == 1 or _is_local() else socket.gethostname()
        store = TCPStore(host, 0, placement.world_size, is_master=True, timeout=timeout, wait_for_workers=False)
        write_text(address_file, text=f"{host}:{store.port}")
        return store
    deadline = time.monotonic() + timeout_s
    while not address_file.exists():
        if time.monotonic() > deadline:
            raise ExperimentError(f"error: rank 0 wrote no {address_file} within {timeout_s:.0f} s; see its log")
        time.sleep(0.05)
    host, _, port = address_file.read_text().rpartition(":")
    return TCPStore(host, int(port), placement.world_size, is_master=False, timeout=timeout)


def _is_local() -> bool:
    return "SUBMITIT_LOCAL_GLOBALID" in os.environ

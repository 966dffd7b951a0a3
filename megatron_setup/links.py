"""Do the ranks reach each other? One all-reduce of known numbers, right after they have met. Owns nothing else."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import Store

from launcher.errors import NodeError
from launcher.schema import PlatformKind, RunConfig

_LIMIT_S, _GRACE_S, _POLL_S = 300.0, 5.0, 0.01
_WHICH_LINK = "hint: export NCCL_DEBUG=INFO shows which link it is"
_NUMBERS = 2**20
"""4 MiB in all: NCCL sends a few bytes by another protocol than a message of the model."""


def check_links(config: RunConfig, *, store: Store, rank: int, world_size: int, limit_s: float = _LIMIT_S) -> None:
    """Row r of a matrix holds r + 1 on rank r and zeros on the others; after the all-reduce every row must be right.

    Raises NodeError naming this host, and the hosts of wrong rows or of a reduction that did not end in `limit_s`.
    Without it a bad link shows as a hang in the model's first collective, until the group's timeout of half an hour.
    """
    host = socket.gethostname()
    store.set(_key(rank), host)
    device = "cpu" if config.platform.kind is PlatformKind.cpu else torch.cuda.current_device()
    rows = torch.zeros(world_size, max(_NUMBERS // world_size, 1), dtype=torch.int32, device=device)
    rows[rank] = rank + 1
    try:
        in_time = _reduce(rows, limit_s=limit_s)
    except RuntimeError as error:  # NCCL's and gloo's own
        words = str(error).partition("\n")[0]
        raise NodeError(f"error: {host} cannot reach the other ranks: {words}\n{_WHICH_LINK}") from error
    if not in_time:
        came = [other for other in range(world_size) if store.check([_key(other)])]
        raise NodeError(
            f"error: no all-reduce on {host} within {limit_s:g} s: {_late(came, world_size=world_size, store=store)}"
        )
    wanted = torch.arange(1, world_size + 1, dtype=torch.int32, device=device)
    wrong = (rows != wanted[:, None]).any(dim=1).nonzero().flatten().tolist()
    if wrong:
        raise NodeError(f"error: an all-reduce on {host} is wrong in what came from {_hosts(wrong, store=store)}")


def _key(rank: int) -> str:
    return f"host of rank {rank}"


def _reduce(rows: torch.Tensor, *, limit_s: float) -> bool:
    """Sum over all ranks; False where it has not ended in time.

    gloo ends its own operation by the limit it is given; one that was left pending would hold the process at its end.
    """
    options = torch.distributed.AllreduceOptions()
    options.timeout = timedelta(seconds=limit_s)
    world: Any = torch.distributed.group.WORLD
    started = time.monotonic()
    work = world.allreduce([rows], options)
    while not work.is_completed():
        if time.monotonic() - started > limit_s + _GRACE_S:
            return False
        time.sleep(_POLL_S)
    try:
        work.wait()
    except RuntimeError:
        if time.monotonic() - started < limit_s:
            raise
        return False
    return True


def _late(came: Sequence[int], *, world_size: int, store: Store) -> str:
    missing = [rank for rank in range(world_size) if rank not in came]
    if missing:
        return f"rank {', '.join(map(str, missing))} did not come to it"
    return f"all came to it, on {_hosts(came, store=store)}\n{_WHICH_LINK}"


def _hosts(ranks: Sequence[int], *, store: Store) -> str:
    """The ranks by host: "node1 (rank 0, 1); node2 (rank 2)"."""
    by_host: dict[str, list[str]] = {}
    for rank in ranks:
        by_host.setdefault(store.get(_key(rank)).decode(), []).append(str(rank))
    return "; ".join(f"{host} (rank {', '.join(on_it)})" for host, on_it in by_host.items())

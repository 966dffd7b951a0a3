"""Is this rank's GPU fit for the run? Rows of checks on numbers that `launcher.jobs.health` reads off the node.

Pure and torch-free. What the kernels compute is the self-test's; packages and capabilities are `zero_kl.gates`'.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from launcher.errors import NodeError, blame
from launcher.schema import RunConfig
from launcher.slurm.shape import derive_shape


@dataclass(frozen=True, kw_only=True)
class Gpus:
    """What one rank sees: the GPUs of its node, and more about the one it uses."""

    num_visible: int
    own: int
    """Index of the rank's GPU."""

    free_gb: float
    """Memory free on the own GPU; 10^9 bytes."""

    total_gb: float
    unreachable: tuple[int, ...] = ()
    """GPUs of other ranks of this node whose memory the own one cannot address."""


@dataclass(frozen=True, kw_only=True)
class HealthCheck:
    """`find` returns what was found and what is wanted, or None. `why` is what would happen without the check."""

    code: str
    name: str
    find: Callable[[Gpus, RunConfig], tuple[str, str] | None]
    why: str
    hint: str


def ranks_here(config: RunConfig) -> int:
    """Ranks that each node of the run has."""
    return derive_shape(config).ranks_per_node


def _count(gpus: Gpus, config: RunConfig) -> tuple[str, str] | None:
    ranks = ranks_here(config)
    if gpus.num_visible >= ranks:
        return None
    return f"{gpus.num_visible} visible GPU(s)", f"{ranks}, one for each rank of a node"


def _memory(gpus: Gpus, config: RunConfig) -> tuple[str, str] | None:
    wanted = config.cluster.min_free_gpu_memory_gb
    if wanted is None or gpus.own >= gpus.num_visible or gpus.free_gb >= wanted:
        return None
    return f"{gpus.free_gb:.1f} of {gpus.total_gb:.1f} GB free on GPU {gpus.own}", f"{wanted:g} GB"


def _peers(gpus: Gpus, config: RunConfig) -> tuple[str, str] | None:
    if not config.cluster.peer_access or not gpus.unreachable:
        return None
    others = ", ".join(map(str, gpus.unreachable))
    return f"no access from GPU {gpus.own} to the memory of GPU {others}", "peer access between all GPUs of a node"


CHECKS: tuple[HealthCheck, ...] = (
    HealthCheck(
        code="HP001",
        name="GPUs of the node",
        find=_count,
        why="a GPU that fell off the bus is missing from the count, and a rank would be left without one",
        hint="{blame}",
    ),
    HealthCheck(
        code="HP002",
        name="free memory",
        find=_memory,
        why="what an earlier job left running on the GPU keeps its memory, and this run dies of it minutes later",
        hint="{blame}",
    ),
    HealthCheck(
        code="HP003",
        name="peer access",
        find=_peers,
        why="without it NCCL goes through host memory, and a broken NVLink shows as nothing but a slow run",
        hint="{blame}, or cluster.peer_access=false on machines without NVLink",
    ),
)


def raise_if_unfit(gpus: Gpus, *, config: RunConfig, host: str) -> None:
    """Raise NodeError naming the host and each check, with found and wanted."""
    found = [(check, seen) for check in CHECKS if (seen := check.find(gpus, config))]
    if found:
        raise NodeError("\n\n".join(_text(check, seen=seen, host=host) for check, seen in found))


def does_not_answer(error: str, *, own: int, host: str) -> str:
    """The refusal of a GPU that CUDA cannot use, with the first line of its words."""
    words = error.partition("\n")[0]
    return f"error[HP000]: {host} is refused: GPU {own} does not answer: {words}\nhint: {blame(host)}"


def _text(check: HealthCheck, *, seen: tuple[str, str], host: str) -> str:
    what, wanted = seen
    return (
        f"error[{check.code}]: {host} is refused: {check.name}: {what}, the run needs {wanted}\n"
        f"  why:    {check.why}\nhint: {check.hint.format(blame=blame(host))}"
    )

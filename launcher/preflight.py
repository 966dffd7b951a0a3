"""Is this rank's GPU fit for the run? Rows of checks on numbers that `launcher.jobs.health` reads off the node.

Pure and torch-free. What the kernels compute is the self-test's; packages and capabilities are `zero_kl.gates`'.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from launcher.errors import NodeError, blame
from launcher.schema import RunConfig
from launcher.slurm.shape import derive_shape, gpus_of

_SHARES_GPUS = (2, 30, 0)
"""The first NCCL that knows NCCL_MULTI_RANK_GPU_ENABLE."""


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

    nccl: tuple[int, int, int] | None = None
    """Version of the NCCL that this process has loaded; read only where ranks share a GPU."""


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


def gpus_here(config: RunConfig) -> int:
    """GPUs that the ranks of a node use; a node held whole may have more."""
    return gpus_of(ranks_here(config), cluster=config.cluster)


def _count(gpus: Gpus, config: RunConfig) -> tuple[str, str] | None:
    wanted, shared = gpus_here(config), config.cluster.ranks_per_gpu
    if gpus.num_visible >= wanted:
        return None
    whose = "rank" if shared == 1 else f"{shared} ranks"
    return f"{gpus.num_visible} visible GPU(s)", f"{wanted}, one for each {whose} of a node"


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


def _shared(gpus: Gpus, config: RunConfig) -> tuple[str, str] | None:
    if config.cluster.ranks_per_gpu == 1:
        return None
    assert gpus.nccl is not None, "read where ranks share a GPU"
    if gpus.nccl >= _SHARES_GPUS:
        return None
    return f"NCCL {_dotted(gpus.nccl)}", f"{_dotted(_SHARES_GPUS)} or later"


def _dotted(version: tuple[int, int, int]) -> str:
    return ".".join(map(str, version))


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
    HealthCheck(
        code="HP004",
        name="ranks that share a GPU",
        find=_shared,
        why="NCCL before 2.30 ends with 'Duplicate GPU detected' where two ranks of a group use one GPU",
        hint="uv pip install nvidia-nccl-cu13==2.30.7, which torch 2.11 runs with, or cluster.ranks_per_gpu=1",
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

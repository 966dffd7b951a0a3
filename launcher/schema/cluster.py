"""Where the processes run. Slurm's spelling where Slurm has a word; null or an empty list leaves its default."""

from dataclasses import dataclass, field
from enum import Enum


class ClusterKind(Enum):
    """Which submitit executor starts the ranks."""

    local = "local"
    slurm = "slurm"


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """The number of processes is derived from the layout where it is null. From `account` on only Slurm reads."""

    kind: ClusterKind
    """local: processes of this machine. slurm: sbatch."""

    num_processes: int | None = None
    """Ranks. null: the smallest world the layout allows (times data_parallel_size, where that is set)."""

    gpus_per_node: int = 8
    """GPUs (and ranks) of a full node; unused by the CPU platform."""

    timeout_min: int = 60
    """Time limit of a run, minutes."""

    wait: bool = False
    """Stay until the run ends and exit with its verdict. A local run always does."""

    account: str | None = None
    """Slurm account that is charged."""

    partition: str | None = None
    """Slurm partition; several with commas."""

    qos: str | None = None
    """Slurm quality of service."""

    nodes: int | None = None
    """Nodes. null: the ranks over gpus_per_node; a contradiction is refused."""

    mem: str | None = None
    """Host memory per node, as "0" (all of it) or "200G"."""

    constraint: str | None = None
    """Features that the nodes must have."""

    exclusive: bool = False
    """Whole nodes, shared with no other job."""

    setup: list[str] = field(default_factory=list[str])
    """Shell lines before the ranks start: modules, exports."""

    max_gpu_hours: float | None = None
    """Refuse a run whose GPUs times time limit cost more. null: no limit."""

    container_image: str | None = None
    """Image for pyxis. null: no container."""

    container_mounts: list[str] = field(default_factory=list[str])
    """SOURCE:TARGET pairs to mount into the container."""

    container_workdir: str | None = None
    """Working folder inside the container."""

    python: str | None = None
    """Interpreter that runs the worker on the nodes. null: the one that submits."""

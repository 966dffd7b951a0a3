"""Where the processes run."""

from dataclasses import dataclass
from enum import Enum


class ClusterKind(Enum):
    """Which submitit executor starts the ranks."""

    local = "local"
    slurm = "slurm"


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """The number of processes is derived from the layout where it is null."""

    kind: ClusterKind
    """local: processes of this machine. slurm: sbatch."""

    num_processes: int | None = None
    """Ranks. null: the smallest world the layout allows (times data_parallel_size, where that is set)."""

    gpus_per_node: int = 8
    """GPUs (and ranks) of a full node; unused by the CPU platform."""

    timeout_min: int = 60
    """Time limit of a run, minutes."""

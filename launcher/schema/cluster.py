"""Where the processes run. Slurm's spelling where Slurm has a word; null or an empty list leaves its default."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class ClusterKind(Enum):
    """Which submitit executor starts the ranks."""

    local = "local"
    slurm = "slurm"


class CpuBind(Enum):
    """What srun binds a rank to, in srun's own words; needs TaskPlugin=task/affinity, and does nothing without."""

    none = "none"
    cores = "cores"
    sockets = "sockets"
    ldoms = "ldoms"
    """NUMA nodes."""


@dataclass(frozen=True, kw_only=True)
class RestartConfig:
    """How often a Slurm job is requeued, by cause, and goes on from its last save. 0: never, as after an own error."""

    timeout: int = 3
    """After a time limit. A job that saved no step before it is not restarted."""

    preempted: int = 20
    """After Slurm took the nodes for another job."""

    node_failure: int = 3
    """After a node died."""


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """The number of processes is derived from the layout where it is null. From `account` on only Slurm reads."""

    kind: ClusterKind
    """local: processes of this machine. slurm: sbatch."""

    num_processes: int | None = None
    """Ranks. null: the smallest world the layout allows (times data_parallel_size, where that is set)."""

    gpus_per_node: int = 8
    """GPUs of a full node; unused by the CPU platform."""

    ranks_per_gpu: int = 1
    """Ranks that share a GPU, to rehearse a layout on fewer: it shows bits and memory, no speed. Over 1: NCCL 2.30."""

    timeout_min: int = 60
    """Time limit of a run, minutes."""

    wait: bool = False
    """Stay until the run ends and exit with its verdict. A local run always does."""

    max_gpu_hours: float | None = None
    """Refuse a run whose GPUs times time limit cost more. null: no limit."""

    max_gpus: int | None = None
    """GPUs that the runs of a sweep on Slurm may hold at one time. null: as many as Slurm gives."""

    secrets: list[str] = field(default_factory=list[str])
    """Names of exported variables that the ranks need, such as HF_TOKEN. No file, argument or log gets their values."""

    min_free_gpu_memory_gb: float | None = None
    """GB (10^9 bytes) that each GPU must have free before a run; a node with less is refused. null: not looked at."""

    peer_access: bool = True
    """Refuse a node whose GPUs cannot reach each other's memory."""

    account: str | None = None
    """Slurm account that is charged."""

    partition: str | None = None
    """Slurm partition; several with commas."""

    qos: str | None = None
    """Slurm quality of service."""

    reservation: str | None = None
    """Slurm reservation to run in."""

    nodes: int | None = None
    """Nodes. null: the ranks over gpus_per_node x ranks_per_gpu; a contradiction is refused."""

    cpus_per_task: int | None = None
    """Processors of a rank."""

    cpu_bind: CpuBind | None = None
    """What a rank is bound to, neighbouring ranks side by side; its memory is then local. null: as the cluster does."""

    mem: str | None = None
    """Host memory per node, as "0" (all of it) or "200G"."""

    constraint: str | None = None
    """Features that the nodes must have."""

    exclude: str | None = None
    """Nodes to avoid, as "node[3,7-9]"."""

    exclude_refused_nodes: bool = False
    """Avoid nodes, too, that refused an earlier attempt of the same run: a GPU missing, a failed self-test."""

    exclusive: bool = False
    """Whole nodes, shared with no other job."""

    nodes_per_nvlink_domain: int | None = None
    """Nodes that one NVLink domain spans, 18 in a GB200 NVL72. null: no domain is larger than a node."""

    segment: int | None = None
    """Nodes that must share an NVLink domain. null: derived from the layout where nodes_per_nvlink_domain is set."""

    max_timeout_min: int | None = None
    """The partition's time limit, minutes; a longer timeout_min is refused. null: none, or not known."""

    max_array_size: int | None = None
    """Runs in one array of a sweep, MaxArraySize of slurm.conf. null: Slurm is asked at submission."""

    signal_delay_s: int = 90
    """How long before the time limit the ranks are warned by a signal, seconds."""

    restarts: RestartConfig = field(default_factory=RestartConfig)
    """How often the job goes on by itself."""

    mail_type: str | None = None
    """Events to mail about, such as END,FAIL. null: none."""

    mail_user: str | None = None
    """Who gets the mail. null: who submits."""

    setup: list[str] = field(default_factory=list[str])
    """Shell lines before the ranks start: modules, exports."""

    python: str | None = None
    """Interpreter that runs the worker on the nodes, or in the container. null: the one that submits."""

    srun_args: list[str] = field(default_factory=list[str])
    """Further arguments of srun, such as --cpu-bind=verbose."""

    sbatch: dict[str, Any] = field(default_factory=dict[str, Any])
    """Further options of sbatch by name, such as nodelist or licenses; true for one without a value."""

    container_image: str | None = None
    """Image for pyxis. null: no container."""

    container_mounts: list[str] = field(default_factory=list[str])
    """SOURCE:TARGET pairs to mount into the container, beside the folders that the run itself needs."""

    container_workdir: str | None = None
    """Working folder inside the container. null: the image's."""

    container_env: list[str] = field(default_factory=list[str])
    """Names of exported variables that win over the image's own."""

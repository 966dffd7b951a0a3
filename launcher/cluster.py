"""Rules about the cluster: nodes and GPUs against the layout, the budget, NVLink domains, what only Slurm reads.

Owns the rows CL001 and on, but for those about NVLink domains (`launcher.slurm.domains`); what they find is
`launcher.slurm.findings`'. Torch-free, and submitit-free.
"""

from __future__ import annotations

from launcher.keys import keys_of
from launcher.pending import AsInSchema
from launcher.requirement import Between, Check, Condition, Equals, Requirement, Severity
from launcher.schema import PlatformKind
from launcher.schema.cluster import ClusterKind
from launcher.slurm import domains, findings
from launcher.slurm.domains import SEGMENT, SLURM
from megatron_setup.rows import where

_SBATCH = "Slurm 22.05 sbatch(1)"
_SUBMITIT = "submitit 1.5.4 slurm/slurm.py, _make_sbatch_string"
_SHAPE = "launcher/slurm/shape.py"
_LAYOUT = ("parallelism", "cluster.num_processes")
"""No key of a layout may be the key of a row here: the search for the nearest layout would try to please it."""

_GPUS = ("cluster.gpus_per_node", "cluster.ranks_per_gpu")

LOCAL = where("a local run", text="cluster.kind is local", test=lambda c: c.cluster.kind is ClusterKind.local)
NODES_SET = SLURM & where("", text="cluster.nodes is set", test=lambda c: (c.cluster.nodes or 0) > 0)
NODES_OPEN = SLURM & where("", text="cluster.nodes is null", test=lambda c: c.cluster.nodes is None)
ON_GPU = where("the run", text="the platform has GPUs", test=lambda c: c.platform.kind is not PlatformKind.cpu)
SHARED = ON_GPU & where(
    "ranks that share a GPU", text="cluster.ranks_per_gpu > 1", test=lambda c: c.cluster.ranks_per_gpu > 1
)
NO_GPU = where("the run", text="the platform is cpu", test=lambda c: c.platform.kind is PlatformKind.cpu)
IMAGE = SLURM & where("", text="cluster.container_image is set", test=lambda c: c.cluster.container_image is not None)
NO_IMAGE = SLURM & where("", text="cluster.container_image is null", test=lambda c: c.cluster.container_image is None)
_COUNTS = {
    "CL001": ("gpus_per_node", _SHAPE),
    "CL002": ("timeout_min", _SBATCH),
    "CL003": ("nodes", _SBATCH),
    "CL004": ("cpus_per_task", _SBATCH),
    "CL005": ("nodes_per_nvlink_domain", _SHAPE),
    "CL006": ("segment", SEGMENT),
    "CL007": ("max_gpus", "launcher/sweep/groups.py"),
    "CL008": ("max_array_size", "launcher/sweep/start.py"),
    "CL009": ("max_timeout_min", _SBATCH),
    "CL035": ("min_free_gpu_memory_gb", "launcher/preflight.py"),
    "CL039": ("ranks_per_gpu", "launcher/jobs/health.py"),
}

COUNT_ROWS = tuple(
    Requirement(
        code=code,
        key=f"cluster.{name}",
        want=Between(low=1),
        why="it counts what must exist; where it can be off, null is off and 0 is not",
        source=source,
    )
    for code, (name, source) in _COUNTS.items()
)

SHAPE_ROWS = (
    Requirement(
        code="CL010",
        key="cluster.nodes",
        want=Check("a divisor of the ranks", findings.even),
        when=NODES_SET,
        why="Slurm starts as many ranks on every node",
        source=f"{_SBATCH}, --ntasks-per-node",
        reads=_LAYOUT,
    ),
    Requirement(
        code="CL011",
        key="cluster.nodes",
        want=Check("nodes x gpus_per_node x ranks_per_gpu is at least the ranks", findings.enough),
        when=NODES_SET & ON_GPU,
        why="a rank has a GPU of its own, or its part of one (cluster.ranks_per_gpu)",
        source="launcher/jobs/health.py, take_gpu",
        reads=(*_LAYOUT, *_GPUS, "platform.kind"),
    ),
    Requirement(
        code="CL012",
        key="cluster.gpus_per_node",
        want=Check("a divisor of the ranks over ranks_per_gpu where they need several nodes", findings.whole_nodes),
        when=NODES_OPEN & ON_GPU,
        why="Slurm starts as many ranks on every node",
        source=f"{_SBATCH}, --ntasks-per-node",
        reads=(*_LAYOUT, "cluster.nodes", "cluster.ranks_per_gpu", "platform.kind"),
    ),
    Requirement(
        code="CL013",
        key="cluster.gpus_per_node",
        want=Check("at least the ranks over ranks_per_gpu", findings.one_machine),
        when=LOCAL & ON_GPU,
        why="a local run is one machine's; a rank has a GPU of its own, or its part of one (cluster.ranks_per_gpu)",
        source="launcher/submit.py, start_local",
        reads=(*_LAYOUT, "cluster.ranks_per_gpu", "platform.kind"),
    ),
    Requirement(
        code="CL028",
        key="cluster.min_free_gpu_memory_gb",
        want=Equals(None),
        when=SHARED,
        why="a rank that looks later counts its neighbours' memory as taken",
        source="launcher/jobs/health.py",
        reads=("cluster.ranks_per_gpu",),
    ),
    Requirement(
        code="CL019",
        key="cluster.max_gpu_hours",
        want=Between(low=0),
        why="no run costs less than nothing; without a limit it is null",
        source=_SHAPE,
    ),
    Requirement(
        code="CL014",
        key="cluster.max_gpu_hours",
        want=Check("at least the GPU-hours at the time limit", findings.budget),
        when=ON_GPU,
        why="the run may cost its GPUs until the time limit, and that is more than the budget",
        source=_SHAPE,
        reads=(*_LAYOUT, *_GPUS, "cluster.timeout_min", "cluster.nodes", "cluster.exclusive"),
    ),
    Requirement(
        code="CL015",
        key="cluster.signal_delay_s",
        want=Check("at most the time limit less a minute to start", findings.late_signal),
        when=SLURM,
        why="a signal that comes before the ranks can take it ends them without a word",
        source="submitit 1.5.4 core/job_environment.py, _handle_signals",
        reads=("cluster.timeout_min",),
    ),
    Requirement(
        code="CL016",
        key="cluster.signal_delay_s",
        want=Between(low=0, high=65535),
        when=SLURM,
        why="sbatch takes no other lead",
        source=f"{_SBATCH}, --signal",
    ),
    Requirement(
        code="CL017",
        key="cluster.max_gpus",
        want=Check("at least the GPUs of the run", findings.one_run_fits),
        when=SLURM & ON_GPU,
        why="a point of a sweep that needs more GPUs than the sweep may hold would never start",
        source="launcher/sweep/groups.py",
        reads=(*_LAYOUT, *_GPUS, "cluster.nodes", "cluster.exclusive"),
    ),
    Requirement(
        code="CL018",
        key="cluster.timeout_min",
        want=Check("at most cluster.max_timeout_min", findings.longer_than_partition),
        when=SLURM,
        why="sbatch refuses a job over its partition's limit, or lets it pend for ever",
        source="Slurm 22.05 slurm.conf(5), EnforcePartLimits",
        reads=("cluster.max_timeout_min",),
    ),
)

SBATCH_ROWS = (
    Requirement(
        code="CL020",
        key="cluster.sbatch",
        want=Check("options that have no key of their own", findings.not_owned),
        when=SLURM,
        why="an option in two places has two values, and the launcher's own options hold the run together",
        source=_SUBMITIT,
    ),
    Requirement(
        code="CL021",
        key="cluster.sbatch",
        want=Check("texts, numbers or true", findings.writable),
        when=SLURM,
        why="sbatch reads --NAME=VALUE, or --NAME where the value is true",
        source="submitit 1.5.4 slurm/slurm.py, _as_sbatch_flag",
    ),
    Requirement(
        code="CL022",
        key="cluster.mem",
        want=Check("null beside mem_per_cpu or mem_per_gpu", findings.one_memory_form),
        when=SLURM,
        why="--mem, --mem-per-cpu and --mem-per-gpu exclude each other",
        source=f"{_SBATCH}, --mem",
        reads=("cluster.sbatch",),
    ),
    Requirement(
        code="CL023",
        key="cluster.srun_args",
        want=Check("arguments that the launcher does not give itself", findings.not_the_launchers),
        when=SLURM,
        why="srun takes the last of two, and what holds the ranks together would be undone",
        source="launcher/slurm/parameters.py, _srun_args",
        reads=("cluster.cpu_bind",),
    ),
    Requirement(
        code="CL027",
        key="cluster.sbatch",
        want=Check("options of sbatch", findings.misspelt),
        when=SLURM,
        severity=Severity.WARNING,
        why="sbatch refuses a job for an option that it does not know; one of a plugin is left alone",
        source=_SBATCH,
    ),
)

RESTART_ROWS = tuple(
    Requirement(
        code=code,
        key=f"cluster.restarts.{cause}",
        want=Between(low=0),
        why="it counts restarts, and 0 is none",
        source="launcher/slurm/lives.py",
    )
    for code, cause in (("CL024", "timeout"), ("CL025", "preempted"), ("CL026", "node_failure"))
)

CONTAINER_ROWS = (
    Requirement(
        code="CL040",
        key="cluster.python",
        want=Check("the container's interpreter", findings.python_of_image),
        when=IMAGE,
        why="the interpreter that submits is not in the image",
        source=_SUBMITIT,
        reads=("cluster.container_image",),
    ),
)

_ONLY_IN_A_CONTAINER = ("container_workdir", "container_mounts", "container_env")

_ONLY_SLURM = (
    *("account", "partition", "qos", "reservation", "nodes", "cpus_per_task", "mem", "constraint", "exclude"),
    *("exclusive", "nodes_per_nvlink_domain", "segment", "signal_delay_s", "mail_type", "mail_user", "setup", "python"),
    *("srun_args", "sbatch", "container_image", *_ONLY_IN_A_CONTAINER, "max_gpus", "cpu_bind", "max_timeout_min"),
    *("max_array_size", "restarts.timeout", "restarts.preempted", "restarts.node_failure"),
    "exclude_refused_nodes",
)
"""Append only: the codes count from CL050."""


def _unread(first: int, *, names: tuple[str, ...], when: Condition, why: str, source: str) -> tuple[Requirement, ...]:
    """A row for each key that nothing reads under `when`, with codes from `first` on."""
    return tuple(
        Requirement(
            code=f"CL{first + i:03d}",
            key=f"cluster.{name}",
            want=AsInSchema(keys_of()[f"cluster.{name}"].default),
            when=when,
            why=why,
            source=source,
        )
        for i, name in enumerate(names)
    )


REQUIREMENTS: tuple[Requirement, ...] = (
    *COUNT_ROWS,
    *SHAPE_ROWS,
    *SBATCH_ROWS,
    *RESTART_ROWS,
    *domains.ROWS,
    *_unread(
        36,
        names=("min_free_gpu_memory_gb", "peer_access", "ranks_per_gpu"),
        when=NO_GPU,
        why="there is no GPU to look at, nor one to share",
        source="launcher/jobs/health.py",
    ),
    *CONTAINER_ROWS,
    *_unread(
        41,
        names=_ONLY_IN_A_CONTAINER,
        when=NO_IMAGE,
        why="there is no container: cluster.container_image is null",
        source="launcher/slurm/parameters.py",
    ),
    *_unread(50, names=_ONLY_SLURM, when=LOCAL, why="no sbatch runs", source="launcher/submit.py, start_local"),
)

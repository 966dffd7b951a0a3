"""Options of sbatch by name: which ones have a key of their own, or are the launcher's. Pure data.

What is in neither table may be given under `cluster.sbatch`. Names are spelled as submitit does, with underscores.
"""

from __future__ import annotations

from collections.abc import Mapping

KEYS: Mapping[str, str] = {
    "account": "cluster.account",
    "constraint": "cluster.constraint",
    "container_env": "cluster.container_env",
    "container_image": "cluster.container_image",
    "container_mounts": "cluster.container_mounts",
    "container_workdir": "cluster.container_workdir",
    "cpus_per_task": "cluster.cpus_per_task",
    "exclude": "cluster.exclude",
    "exclusive": "cluster.exclusive",
    "gpus": "cluster.gpus_per_node",
    "gpus_per_node": "cluster.gpus_per_node",
    "gpus_per_task": "cluster.gpus_per_node",
    "gres": "cluster.gpus_per_node",
    "job_name": "job.name",
    "mail_type": "cluster.mail_type",
    "mail_user": "cluster.mail_user",
    "mem": "cluster.mem",
    "nodes": "cluster.nodes",
    "ntasks": "cluster.num_processes",
    "ntasks_per_node": "cluster.nodes",
    "num_gpus": "cluster.gpus_per_node",
    "partition": "cluster.partition",
    "qos": "cluster.qos",
    "reservation": "cluster.reservation",
    "segment": "cluster.segment",
    "setup": "cluster.setup",
    "signal": "cluster.signal_delay_s",
    "signal_delay_s": "cluster.signal_delay_s",
    "srun_args": "cluster.srun_args",
    "time": "cluster.timeout_min",
}
"""The key of the schema that sets an option."""

LAUNCHERS: Mapping[str, str] = {
    "additional_parameters": "cluster.sbatch",
    "array": "-m, when sweeps are built",
    "array_parallelism": "-m, when sweeps are built",
    "chdir": "absolute paths: the ranks have the current folder of who submits",
    "error": "the attempt's folder of logs",
    "export": "cluster.secrets",
    "kill_on_invalid_dep": "nothing: it is always yes",
    "map_count": "-m, when sweeps are built",
    "no_requeue": "nothing: it is always set",
    "open_mode": "the attempt's folder of logs",
    "output": "the attempt's folder of logs",
    "parsable": "nothing: submitit reads sbatch's words",
    "requeue": "nothing: this version does not requeue",
    "stderr_to_stdout": "the attempt's folder of logs",
    "teardown": "nothing: the launcher ends the job",
    "test_only": "python -m launcher plan",
    "use_srun": "nothing: ranks are srun's tasks",
    "wait": "cluster.wait",
    "wrap": "nothing: the launcher writes the script",
}
"""Options that would take the run apart, with what there is instead."""

OWNED: Mapping[str, str] = {**KEYS, **LAUNCHERS}
"""What must not stand under `cluster.sbatch`."""


def spelled(name: str) -> str:
    """An option as submitit spells it: "mem-per-gpu" is "mem_per_gpu"."""
    return name.replace("-", "_")

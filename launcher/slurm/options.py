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
    "cpu_bind": "cluster.cpu_bind",
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
    "additional_parameters": "they are the entries of cluster.sbatch themselves",
    "array": "-m makes arrays",
    "array_parallelism": "it is cluster.max_gpus",
    "chdir": "the ranks run where the launcher was typed",
    "error": "the attempt's folder has the logs",
    "export": "the ranks have what the launcher had exported",
    "kill_on_invalid_dep": "it is always yes",
    "map_count": "-m makes arrays",
    "no_requeue": "it is cluster.restarts",
    "open_mode": "the attempt's folder has the logs",
    "output": "the attempt's folder has the logs",
    "parsable": "submitit reads sbatch's words",
    "requeue": "it is cluster.restarts",
    "stderr_to_stdout": "the attempt's folder has the logs",
    "teardown": "the launcher ends the job itself",
    "test_only": "python -m launcher plan is for that",
    "use_srun": "ranks are tasks of srun",
    "wait": "it is cluster.wait",
    "wrap": "the launcher writes the script",
}
"""Options that would take the run apart, and what there is instead."""

OWNED: Mapping[str, str] = {**{name: f"it is {key}" for name, key in KEYS.items()}, **LAUNCHERS}
"""What must not stand under `cluster.sbatch`, and why."""


SRUNS = (
    *("--kill-on-bad-exit", "-K", "--distribution", "-m", "--cpus-per-task", "-c", "--output", "-o", "--unbuffered"),
    *("--container-image", "--container-mounts", "--container-env", "--container-workdir"),
)
"""Arguments of srun that are the launcher's, or have a key."""

BINDING = ("--cpu-bind", "--mem-bind")
"""Those that `cluster.cpu_bind` gives."""

FREE = (
    *("acctg_freq", "batch", "bb", "bbf", "begin", "cluster_constraint", "clusters", "comment", "container"),
    *("container_id", "contiguous", "core_spec", "cores_per_socket", "cpu_freq", "cpus_per_gpu", "deadline"),
    *("delay_boot", "dependency", "distribution", "export_file", "extra", "extra_node_info", "get_user_env", "gid"),
    *("gpu_bind", "gpu_freq", "gpus_per_socket", "gres_flags", "hint", "hold", "ignore_pbs", "input", "licenses"),
    *("mcs_label", "mem_bind", "mem_per_cpu", "mem_per_gpu", "mincpus", "network", "nice", "no_kill", "nodefile"),
    *("nodelist", "ntasks_per_core", "ntasks_per_gpu", "ntasks_per_socket", "overcommit", "oversubscribe", "power"),
    *("prefer", "priority", "profile", "propagate", "quiet", "reboot", "sockets_per_node", "spread_job"),
    *("switches", "thread_spec", "threads_per_core", "time_min", "tmp", "tres_bind", "tres_per_task", "uid"),
    *("use_min_nodes", "verbose", "wait_all_nodes", "wckey"),
)
"""The options that sbatch has beside those: sbatch(1) of Slurm 22.05, and tres_* and container_id of 24.05."""


def spelled(name: str) -> str:
    """An option as submitit spells it: "mem-per-gpu" is "mem_per_gpu"."""
    return name.replace("-", "_")

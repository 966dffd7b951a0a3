"""From a configuration to submitit's parameters and the exact sbatch script. Needs no Slurm and starts nothing.

Owns what is asked of sbatch and of srun. The rules about it are `launcher.cluster`'s.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import astuple
from pathlib import Path
from typing import Any

from submitit.slurm.slurm import _make_sbatch_string  # pyright: ignore[reportPrivateUsage]

from launcher.errors import ExitCode
from launcher.identity import run_name
from launcher.paths import AttemptPaths
from launcher.schema import RunConfig
from launcher.schema.cluster import CpuBind
from launcher.slurm.options import spelled
from launcher.slurm.shape import Shape, derive_shape

SUBMITITS = frozenset(("comment", "cpus_per_gpu", "dependency", "mem_per_cpu", "mem_per_gpu", "nodelist", "wckey"))
"""Options under `cluster.sbatch` that submitit has a parameter for; the others go to its additional_parameters."""


def interpreter(config: RunConfig) -> str:
    """The nodes' Python as a word of the shell."""
    return shlex.quote(config.cluster.python or sys.executable)


def sbatch_text(config: RunConfig, *, attempt: AttemptPaths, code: Path) -> str:
    """The script that sbatch gets, to the byte: submitit's own text."""
    folder = attempt.logs.absolute()
    return _make_sbatch_string(
        command=f"{interpreter(config)} -u -m submitit.core._submit {shlex.quote(str(folder))}",
        folder=folder,
        **parameters(config, attempt=attempt, code=code),
    )


def parameters(
    config: RunConfig, *, attempt: AttemptPaths, code: Path, package: str = "launcher.slurm"
) -> dict[str, Any]:
    """What `SlurmExecutor.update_parameters` is given; settings that are off are left out.

    `package` has the modules `begin` and `finish` for the folder.
    """
    cluster, shape = config.cluster, derive_shape(config)
    further = {spelled(name): value for name, value in cluster.sbatch.items()}
    asked: dict[str, Any] = {
        "job_name": run_name(config),
        "time": cluster.timeout_min,
        "nodes": shape.nodes,
        "ntasks_per_node": shape.ranks_per_node,
        "gpus_per_node": shape.gpus_per_node or None,
        "cpus_per_task": cluster.cpus_per_task,
        "account": cluster.account,
        "partition": cluster.partition,
        "qos": cluster.qos,
        "mem": cluster.mem,
        "constraint": cluster.constraint,
        "exclude": cluster.exclude,
        "exclusive": cluster.exclusive or None,
        "signal_delay_s": cluster.signal_delay_s,
        "mail_type": cluster.mail_type,
        "mail_user": cluster.mail_user,
        "setup": [*cluster.setup, *_exports(code), *_begin_lines(config, package=package, folder=attempt.root)],
        "teardown": _end_lines(config, package=package, folder=attempt.root),
        "srun_args": _srun_args(config),
        "stderr_to_stdout": True,
        "wckey": None,
    }
    asked |= {name: value for name, value in further.items() if name in SUBMITITS}
    asked["additional_parameters"] = _additional(config, shape=shape) | {
        name: value for name, value in further.items() if name not in SUBMITITS
    }
    return {name: value for name, value in asked.items() if value is not None or name == "wckey"}


def _additional(config: RunConfig, *, shape: Shape) -> dict[str, Any]:
    """Options that submitit has no parameter for.

    A job whose dependency failed would pend for ever.
    """
    requeue = "requeue" if any(astuple(config.cluster.restarts)) else "no_requeue"
    asked: dict[str, Any] = {requeue: True, "kill_on_invalid_dep": "yes"}
    if config.cluster.reservation is not None:
        asked["reservation"] = config.cluster.reservation
    if shape.segment is not None:
        asked["segment"] = shape.segment
    return asked


def _exports(code: Path) -> list[str]:
    """The ranks import the copied code, whatever lies in the current folder, and after the person's own lines."""
    return [
        f"export PYTHONPATH={shlex.quote(str(code.absolute()))}${{PYTHONPATH:+:$PYTHONPATH}}",
        "export PYTHONSAFEPATH=1",
    ]


def _srun_args(config: RunConfig) -> list[str]:
    """A failed rank ends the others; consecutive ranks share a node; srun takes no --cpus-per-task from sbatch."""
    cpus = config.cluster.cpus_per_task
    return [
        "--kill-on-bad-exit=1",
        *_binding_args(config.cluster.cpu_bind),
        *([] if cpus is None else [f"--cpus-per-task={cpus}"]),
        *_container_args(config),
        *config.cluster.srun_args,
    ]


def _binding_args(bind: CpuBind | None) -> list[str]:
    """Where a rank's processors are. srun's default deals the ranks of a node to its sockets in turn, so that every
    second rank would be bound far from its GPU: GPUs are numbered along the sockets."""
    if bind is None or bind is CpuBind.none:
        return ["--distribution=block", *([] if bind is None else ["--cpu-bind=none"])]
    return ["--distribution=block:block", f"--cpu-bind={bind.value}", "--mem-bind=local"]


def container_variables(config: RunConfig) -> tuple[str, ...]:
    """Exported variables that win over the image's own. pyxis gives an image's variable precedence over every other;
    those of `launcher.environment` need no mention, since each rank sets them itself."""
    cluster = config.cluster
    if cluster.container_image is None:
        return ()
    return ("PYTHONPATH", "PYTHONSAFEPATH", *cluster.secrets, *cluster.container_env)


def _container_args(config: RunConfig) -> list[str]:
    """pyxis's arguments. The folders that the run needs are mounted under their own paths."""
    cluster = config.cluster
    if cluster.container_image is None:
        return []
    mounts = [*(f"{folder}:{folder}" for folder in _needed_folders(config)), *cluster.container_mounts]
    return [
        f"--container-image={cluster.container_image}",
        f"--container-mounts={','.join(mounts)}",
        f"--container-env={','.join(container_variables(config))}",
        *([] if cluster.container_workdir is None else [f"--container-workdir={cluster.container_workdir}"]),
    ]


def _needed_folders(config: RunConfig) -> list[Path]:
    """Outputs, a local checkpoint, and the folder of the prompts' file; absolute."""
    folders = [Path(config.output_dir)]
    if config.model.hf_path is not None and Path(config.model.hf_path).is_dir():
        folders.append(Path(config.model.hf_path))
    if config.job.prompts is not None:
        folders.append(Path(config.job.prompts).parent)
    return list(dict.fromkeys(folder.absolute() for folder in folders))


def _begin_lines(config: RunConfig, *, package: str, folder: Path) -> list[str]:
    """Before the ranks: the shell outlives the signals with which Slurm ends the ranks, to see to what comes next; and
    a job that was requeued clears the folder, or ends here."""
    begin = _line(config, module=f"{package}.begin", folder=folder)
    return ["trap : TERM", f'[ "${{SLURM_RESTART_COUNT:-0}}" = 0 ] || {begin} || exit']


def _end_lines(config: RunConfig, *, package: str, folder: Path) -> list[str]:
    """After the ranks: what became of them, and the job's exit code. `$?` is srun's.

    The shell requeues and not Python: a container has no scontrol. An array's element is named by its index, since the
    last one's own id is the array's too. A controller that is restarting is asked again.
    """
    return [
        f"{_line(config, module=f'{package}.finish', folder=folder)} $?",
        "code=$?",
        f"[ $code = {int(ExitCode.INTERRUPTED)} ] || exit $code",
        "job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_}${SLURM_ARRAY_TASK_ID:-$SLURM_JOB_ID}",
        "for wait in 0 10 60; do sleep $wait; scontrol requeue $job && exit; done",
        "exit $code",
    ]


def _line(config: RunConfig, *, module: str, folder: Path) -> str:
    """The module on the folder, in the container where there is one."""
    step = ["srun", "--nodes=1", "--ntasks=1", "--ntasks-per-node=1", *_container_args(config)]
    inside = f"{shlex.join(step)} " if config.cluster.container_image is not None else ""
    return f"{inside}{interpreter(config)} -m {module} {shlex.quote(str(folder.absolute()))}"

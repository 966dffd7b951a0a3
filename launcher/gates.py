"""Can this machine start the run? Looks at files and package metadata only; the worker's own gates look closer."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from launcher.schema import PlatformKind, RunConfig
from launcher.schema.cluster import ClusterKind
from launcher.schema.layout import derive_layout
from launcher.slurm.shape import gpus_of
from zero_kl.gates import count_gpus, read_driver
from zero_kl.versions import check_packages, installed_packages


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What was found here. `packages` is the version by distribution name, None where it is not installed."""

    num_gpus: int
    driver: str | None
    sbatch: str | None
    packages: Mapping[str, str | None]


def read_machine() -> Machine:
    """This machine."""
    return Machine(
        num_gpus=count_gpus(),
        driver=read_driver(),
        sbatch=shutil.which("sbatch"),
        packages=installed_packages(),
    )


def check_machine(config: RunConfig) -> list[str]:
    """One line for each thing that is missing to start this run from here; empty where it can be started."""
    return missing_things(config, machine=read_machine())


def missing_things(config: RunConfig, *, machine: Machine) -> list[str]:
    """The lines of `check_machine`. A login node with sbatch needs neither GPU nor torch.

    Without sbatch a Slurm run cannot start; what the machine lacks to run it itself is then listed too.
    """
    if config.cluster.kind is ClusterKind.slurm:
        if machine.sbatch is not None:
            return []
        return [
            "sbatch is not on PATH: submit from a machine of the cluster, or type cluster=local on a GPU machine",
            *_missing_here(config, machine=machine),
        ]
    return _missing_here(config, machine=machine)


def _missing_here(config: RunConfig, *, machine: Machine) -> list[str]:
    packages = check_packages(config, installed=machine.packages).violations
    return [*_missing_gpus(config, machine=machine), *packages]


def _missing_gpus(config: RunConfig, *, machine: Machine) -> list[str]:
    if config.platform.kind is PlatformKind.cpu:
        return []
    wanted = min(gpus_of(derive_layout(config).world_size, cluster=config.cluster), config.cluster.gpus_per_node)
    if machine.num_gpus >= wanted:
        return []
    found = f"{machine.num_gpus} NVIDIA GPU(s) in /dev, driver {machine.driver or 'not loaded'}"
    return [f"found {found}; platform={config.platform.kind.value} needs {wanted}: use a machine that has them"]

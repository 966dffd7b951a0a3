"""What keeps a run from starting on a machine, line by line; on described machines and on this one."""

import shutil
from dataclasses import replace

import pytest

from launcher.compose import compose
from launcher.gates import Machine, check_machine, missing_things, read_machine
from tests.plugin_golden import Golden
from zero_kl.versions import PACKAGES

EVERYTHING = {name: row.measured for row in PACKAGES for name in row.distributions}
NODE = Machine(num_gpus=8, driver="580.159.03", sbatch=None, packages=EVERYTHING)
LOGIN = Machine(num_gpus=0, driver=None, sbatch="/usr/bin/sbatch", packages=dict.fromkeys(EVERYTHING))
LAPTOP = replace(LOGIN, sbatch=None)


def test_a_login_node_needs_neither_gpu_nor_torch() -> None:
    assert missing_things(compose(["+preset=zero_kl"]).config, machine=LOGIN) == []


def test_a_laptop_lacks_everything(golden: Golden) -> None:
    lines = missing_things(compose(["+preset=zero_kl"]).config, machine=LAPTOP)
    golden("\n".join(lines), name="zero_kl/laptop.txt")


def test_a_full_node_runs_it_itself() -> None:
    assert missing_things(compose(["+preset=zero_kl", "cluster=local"]).config, machine=NODE) == []


@pytest.mark.parametrize(
    ("gpus", "shared", "missing"), [(8, 1, 0), (4, 1, 0), (2, 1, 1), (2, 2, 0), (1, 2, 1), (2, 3, 0), (1, 4, 0)]
)
def test_too_few_gpus(gpus: int, shared: int, missing: int) -> None:
    """Of four ranks."""
    words = ("cluster=local", "cluster.num_processes=4", f"cluster.ranks_per_gpu={shared}")
    lines = missing_things(compose(["+preset=zero_kl", *words]).config, machine=replace(NODE, num_gpus=gpus))
    assert len(lines) == missing


@pytest.mark.parametrize(("shared", "wanted"), [(1, 8), (2, 8), (4, 4)])
def test_a_machine_without_sbatch_needs_the_gpus_of_a_node(shared: int, wanted: int) -> None:
    words = ("cluster=slurm", "cluster.num_processes=16", f"cluster.ranks_per_gpu={shared}")
    config = compose(["+preset=zero_kl", *words]).config
    assert len(missing_things(config, machine=replace(NODE, num_gpus=wanted))) == 1, "sbatch alone"
    assert f"needs {wanted}:" in missing_things(config, machine=replace(NODE, num_gpus=wanted - 1))[1]


def test_the_gpu_line(golden: Golden) -> None:
    config = compose(["+preset=zero_kl", "cluster=local", "cluster.num_processes=4"]).config
    (line,) = missing_things(config, machine=replace(NODE, num_gpus=2))
    golden(line, name="zero_kl/too_few_gpus.txt")


def test_a_cpu_run_needs_no_gpu() -> None:
    assert missing_things(compose(["+preset=zero_kl_cpu"]).config, machine=replace(NODE, num_gpus=0)) == []


def test_this_machine_starts_the_cpu_run() -> None:
    assert check_machine(compose(["+preset=zero_kl_cpu"]).config) == []


def test_this_machine_is_read() -> None:
    machine = read_machine()
    assert machine.sbatch == shutil.which("sbatch")
    assert machine.packages["torch"] is not None

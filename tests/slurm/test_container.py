"""What a rank in a container is given, by a stand-in for pyxis: image, mounts, workdir and every managed variable."""

import sys
from pathlib import Path

import pytest

from launcher.environment import environment
from launcher.errors import ExitCode
from launcher.files import read_json
from launcher.resolved import load_resolved
from launcher.slurm.code import code_digest
from tests.launcher.runs import only_attempt
from tests.slurm.cluster import Cluster
from tests.slurm.test_jobs import accounted, assert_nothing_is_left, job_of, launch

pytestmark = pytest.mark.slurm

RANK = """
import json, os, sys
from pathlib import Path
from launcher.environment import apply_environment
from launcher.resolved import load_resolved

before = dict(os.environ)
apply_environment(load_resolved(Path(sys.argv[1]) / "resolved.yaml"))
(Path(sys.argv[1]) / "seen.json").write_text(json.dumps([before, dict(os.environ)]))
"""
"""A rank as far as its environment is set; then it ends as one that failed, so that nothing needs a GPU."""


def python(folder: Path, *, attempts: Path) -> Path:
    """An interpreter that is RANK where submitit is asked for, and nothing special otherwise."""
    rank = folder / "rank.py"
    rank.write_text(RANK)
    path = folder / "python"
    run = f'{sys.executable} {rank} "$(echo {attempts}/*/attempt_1)" && exit 5'
    path.write_text(f'#!/bin/sh\ncase "$*" in *submitit*) {run}; exit $?;; esac\nexec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return path


def test_what_a_container_is_asked_for_arrives(cluster: Cluster, tmp_path: Path) -> None:
    """The image has values of its own: what is named wins over them, each managed variable is the rank's own doing."""
    outputs, image = tmp_path / "outputs", tmp_path / "image.sqsh"
    image.write_text("PYTHONPATH=/image\nHF_HOME=/image\nA_TOKEN=image\nUNNAMED=image\nOF_THE_IMAGE=image\n")
    exported = {"HF_HOME": "/mine", "A_TOKEN": "mine", "UNNAMED": "mine", "NOT_IN_IT": "mine"}
    words = (
        *("+preset=zero_kl_hopper", "cluster=slurm_pyxis", "cluster.wait=true", f"cluster.container_image={image}"),
        *("cluster.container_mounts=[/data:/data]", "cluster.container_workdir=/work"),
        *("cluster.container_env=[HF_HOME]", "cluster.secrets=[A_TOKEN]"),
    )
    interpreter = python(tmp_path, attempts=outputs)
    done = launch(cluster, *words, f"cluster.python={interpreter}", f"output_dir={outputs}", **exported)
    assert done.code == ExitCode.EXPERIMENT, done.text
    attempt = only_attempt(outputs)
    assert accounted(cluster, attempt) == ("FAILED", "5:0")

    before, after = read_json(attempt.root / "seen.json")
    assert before["PYXIS_container_image"] == str(image)
    assert f"{outputs}:{outputs}" in before["PYXIS_container_mounts"].split(",")
    assert before["PYXIS_container_mounts"].endswith(",/data:/data")
    assert before["PYXIS_container_workdir"] == "/work"
    code = outputs / "cache" / "code" / code_digest()
    wanted = {"HF_HOME": "/mine", "A_TOKEN": "mine", "UNNAMED": "image", "NOT_IN_IT": "mine", "PYTHONSAFEPATH": "1"}
    assert {name: before[name] for name in wanted} == wanted
    assert before["OF_THE_IMAGE"] == "image"
    assert before["PYTHONPATH"].partition(":")[0] == str(code)
    managed = environment(load_resolved(attempt.resolved))
    assert len(managed) > 3
    assert {name: after.get(name) for name in managed} == managed
    assert_nothing_is_left(cluster)


def test_an_image_that_fights_a_managed_variable_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    outputs, image = tmp_path / "outputs", tmp_path / "image.sqsh"
    image.write_text("CUBLAS_WORKSPACE_CONFIG=:4096:8\n")
    words = ("+preset=zero_kl_hopper", "cluster=slurm_pyxis", "cluster.wait=true", f"cluster.container_image={image}")
    done = launch(cluster, *words, f"cluster.python={sys.executable}", f"output_dir={outputs}")
    assert done.code == ExitCode.ENVIRONMENT, done.text
    assert "CUBLAS_WORKSPACE_CONFIG" in done.text
    assert accounted(cluster, only_attempt(outputs)) == ("FAILED", "3:0")
    assert job_of(only_attempt(outputs)) in done.text
    assert_nothing_is_left(cluster)

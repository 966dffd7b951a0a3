"""Which nodes the next attempt of a run avoids."""

import socket
from pathlib import Path

import pytest

from launcher.compose import compose
from launcher.errors import ExitCode, NodeError
from launcher.paths import RunPaths
from launcher.preflight import Gpus, raise_if_unfit
from launcher.records import RankState, write_rank
from launcher.slurm.parameters import parameters
from launcher.slurm.refused import avoiding, refused_nodes

HOST = socket.gethostname()
WORDS = ["platform=hopper", "cluster=slurm"]


def _refused(run: RunPaths) -> str:
    """An attempt whose only rank found a GPU missing; its error."""
    with pytest.raises(NodeError) as caught:
        gone = Gpus(num_visible=0, own=0, free_gb=0.0, total_gb=0.0)
        raise_if_unfit(gone, config=compose(WORDS).config, host=HOST)
    _failed(run, error=str(caught.value), code=ExitCode.ENVIRONMENT)
    return str(caught.value)


def _failed(run: RunPaths, *, error: str, code: ExitCode) -> None:
    attempt = run.new_attempt()
    write_rank(attempt, rank=0, state=RankState.FAILED, exit_code=code, error=error)


def test_a_node_that_refused_is_avoided_where_that_is_asked_for(tmp_path: Path) -> None:
    run = RunPaths(tmp_path / "run")
    assert f"hint: cluster.exclude={HOST}" in _refused(run)
    asked = compose([*WORDS, "cluster.exclude_refused_nodes=true", "cluster.exclude=node7"]).config
    config = avoiding(asked, run=run)
    assert config.cluster.exclude == f"node7,{HOST}"
    assert parameters(config, attempt=run.attempts()[0], code=tmp_path)["exclude"] == f"node7,{HOST}"
    assert avoiding(compose(WORDS).config, run=run).cluster.exclude is None


def test_an_error_that_is_not_the_nodes_blames_nobody(tmp_path: Path) -> None:
    run = RunPaths(tmp_path / "run")
    _failed(run, error="environment refused: OMP_NUM_THREADS is exported as 7", code=ExitCode.ENVIRONMENT)
    assert refused_nodes(run) == ()
    config = avoiding(compose([*WORDS, "cluster.exclude_refused_nodes=true"]).config, run=run)
    assert config.cluster.exclude is None


def test_several_attempts_add_up_and_a_node_stands_once(tmp_path: Path) -> None:
    run = RunPaths(tmp_path / "run")
    _refused(run)
    _refused(run)
    assert refused_nodes(run) == (HOST,)

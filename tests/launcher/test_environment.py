"""What the launcher itself adds to a run's variables, and what exported is refused, before and in the worker."""

import os

import pytest

from launcher.compose import compose
from launcher.environment import apply_environment, check_environment, environment, refusals
from launcher.errors import ConfigError, NodeError

NAME = "NCCL_MULTI_RANK_GPU_ENABLE"
GPU = ("platform=hopper", "cluster.num_processes=2")
SHARED = (*GPU, "cluster.gpus_per_node=1", "cluster.ranks_per_gpu=2")
REFUSAL = f"error: {NAME} is exported as 0, the run needs 1\nhint: unset {NAME}"
ALONE = [(), ("cluster.ranks_per_gpu=2",), GPU, (*GPU, "cluster.ranks_per_gpu=1")]
"""The CPU platform has no GPU to share, whatever is asked for."""


@pytest.mark.parametrize("words", [SHARED, (*SHARED, "cluster=slurm")])
def test_ranks_share_a_gpu_by_a_variable_of_nccl(words: tuple[str, ...]) -> None:
    config = compose(words).config
    assert environment(config)[NAME] == "1"
    assert refusals(config, exported={}) == refusals(config, exported={NAME: "1"}) == []
    assert refusals(config, exported={NAME: "0"}) == [REFUSAL]


@pytest.mark.parametrize("words", ALONE)
def test_other_runs_neither_set_nor_refuse_it(words: tuple[str, ...]) -> None:
    config = compose(words).config
    assert NAME not in environment(config)
    assert refusals(config, exported={NAME: "0"}) == []


@pytest.mark.parametrize(("words", "threads"), [((), "1"), (GPU, None)])
def test_the_ranks_of_the_cpu_platform_have_one_thread(words: tuple[str, ...], threads: str | None) -> None:
    assert environment(compose(words).config).get("OMP_NUM_THREADS") == threads


def test_an_exported_variable_is_refused_where_it_is_typed_and_in_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is set then."""
    config = compose(SHARED).config
    for name in environment(config):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(NAME, "0")
    before = dict(os.environ)
    with pytest.raises(ConfigError) as typed:
        check_environment(config)
    with pytest.raises(NodeError) as worker:
        apply_environment(config)
    assert str(typed.value) == str(worker.value) == REFUSAL
    assert dict(os.environ) == before

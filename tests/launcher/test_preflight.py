"""What makes a rank refuse its GPU, number by number, and in which words."""

from dataclasses import replace

import pytest

from launcher.compose import compose
from launcher.errors import ExitCode, NodeError
from launcher.preflight import CHECKS, Gpus, does_not_answer, gpus_here, raise_if_unfit, ranks_here
from launcher.schema import RunConfig
from tests.plugin_golden import Golden

FINE = Gpus(num_visible=8, own=3, free_gb=139.2, total_gb=150.1, nccl=(2, 30, 7))


def config(*words: str) -> RunConfig:
    return compose(["platform=hopper", "cluster=slurm", "cluster.num_processes=16", *words]).config


BROKEN = {
    "HP001": (replace(FINE, num_visible=7), config()),
    "HP002": (replace(FINE, free_gb=11.5), config("cluster.min_free_gpu_memory_gb=120")),
    "HP003": (replace(FINE, unreachable=(4, 7)), config()),
    "HP004": (replace(FINE, nccl=(2, 9, 9)), config("cluster.ranks_per_gpu=2")),
}


def codes(gpus: Gpus, *, of: RunConfig) -> set[str]:
    return {check.code for check in CHECKS if check.find(gpus, of)}


def test_every_check_has_a_case() -> None:
    assert [check.code for check in CHECKS] == list(BROKEN)


@pytest.mark.parametrize("code", BROKEN)
def test_a_broken_node_is_refused_by_its_check_alone(code: str) -> None:
    gpus, of = BROKEN[code]
    assert codes(gpus, of=of) == {code}
    assert codes(FINE, of=of) == set()


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        (replace(FINE, free_gb=0.1), ()),
        (replace(FINE, free_gb=120.0), ("cluster.min_free_gpu_memory_gb=120",)),
        (replace(FINE, unreachable=(4,)), ("cluster.peer_access=false",)),
        (replace(FINE, num_visible=4, own=1), ("cluster.nodes=4",)),
        (replace(FINE, num_visible=4, own=1), ("cluster.nodes=2", "cluster.ranks_per_gpu=2")),
        (replace(FINE, nccl=None), ()),
        (replace(FINE, nccl=(2, 30, 0)), ("cluster.ranks_per_gpu=2",)),
    ],
)
def test_what_is_off_or_just_enough(gpus: Gpus, words: tuple[str, ...]) -> None:
    raise_if_unfit(gpus, config=config(*words), host="node7")


def test_a_missing_gpu_is_not_also_out_of_memory() -> None:
    missing = Gpus(num_visible=2, own=3, free_gb=0.0, total_gb=0.0)
    assert codes(missing, of=config("cluster.min_free_gpu_memory_gb=1")) == {"HP001"}


def test_the_ranks_of_a_node_are_those_of_the_plan() -> None:
    assert [ranks_here(config(*words)) for words in ((), ("cluster.nodes=4",))] == [8, 4]


@pytest.mark.parametrize(
    ("words", "gpus"),
    [
        ((), 8),
        (("cluster.ranks_per_gpu=2",), 8),
        (("cluster.nodes=2", "cluster.ranks_per_gpu=2"), 4),
        (("cluster.nodes=2", "cluster.ranks_per_gpu=3"), 3),
        (("cluster.ranks_per_gpu=16",), 1),
        (("cluster.nodes=4", "cluster.exclusive=true"), 4),
    ],
)
def test_ranks_that_share_gpus_need_fewer(words: tuple[str, ...], gpus: int) -> None:
    assert gpus_here(config(*words)) == gpus
    assert codes(replace(FINE, num_visible=gpus, own=0), of=config(*words)) == set()
    assert codes(replace(FINE, num_visible=gpus - 1, own=0), of=config(*words)) == {"HP001"}


def test_the_refusals(golden: Golden) -> None:
    texts: list[str] = []
    too_few = (replace(FINE, num_visible=3), config("cluster.nodes=2", "cluster.ranks_per_gpu=2"))
    for gpus, of in (*BROKEN.values(), too_few):
        with pytest.raises(NodeError) as caught:
            raise_if_unfit(gpus, config=of, host="node7")
        assert caught.value.exit_code is ExitCode.ENVIRONMENT
        texts.append(str(caught.value))
    cuda = "CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be asynchronously reported"
    texts.append(does_not_answer(cuda, own=3, host="node7"))
    golden("\n\n".join(texts), name="preflight.txt")

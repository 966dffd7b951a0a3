"""megatron-core's own training on gloo: every layout has the losses and gradient norms of one rank."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.worlds import run_world

pytestmark = pytest.mark.usefixtures("cpu_platform")

OneRank = Callable[[str | None], tuple[Path, Any]]

DENSE = [{"tp": 2}, {"tp": 2, "sp": True}, {"pp": 2}, {"cp": 2}, {"recompute": True}]
EXPERTS = [{"ep": 2}, {"tp": 2, "sp": True}, {"ep": 2, "recompute": True}]


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> OneRank:
    """By token dispatcher (None: dense), the checkpoint of the random weights and what one rank makes of them."""

    @cache
    def train_alone(dispatcher: str | None) -> tuple[Path, Any]:
        from tests.megatron_setup.cpu.tiny_gpt import Layout, train

        checkpoint = tmp_path_factory.mktemp("torch_dist") / "random"
        (trained,) = run_world(
            train, num_ranks=1, layout=Layout(dispatcher=dispatcher), checkpoint=checkpoint, save=True
        )
        return checkpoint, trained

    return train_alone


def _compare(layout: dict[str, Any], *, dispatcher: str | None, one_rank: OneRank) -> None:
    from tests.megatron_setup.cpu.tiny_gpt import Layout, train

    checkpoint, expected = one_rank(dispatcher)
    two = Layout(dispatcher=dispatcher, **layout)
    *_, last = run_world(train, num_ranks=2, layout=two, checkpoint=checkpoint)
    assert expected.losses[1] < expected.losses[0] - 0.1
    assert last.losses == pytest.approx(expected.losses, rel=1e-5)
    assert last.grad_norms == pytest.approx(expected.grad_norms, rel=1e-4)


@pytest.mark.parametrize("layout", DENSE, ids=str)
def test_dense(layout: dict[str, Any], one_rank: OneRank) -> None:
    _compare(layout, dispatcher=None, one_rank=one_rank)


@pytest.mark.parametrize("dispatcher", ["alltoall", "allgather"])
@pytest.mark.parametrize("layout", EXPERTS, ids=str)
def test_experts(layout: dict[str, Any], dispatcher: str, one_rank: OneRank) -> None:
    _compare(layout, dispatcher=dispatcher, one_rank=one_rank)


def test_a_fresh_distributed_optimizer_resumes_bit_for_bit(tmp_path: Path) -> None:
    from tests.megatron_setup.cpu.tiny_gpt import Layout, train_and_resume

    for straight, resumed in run_world(train_and_resume, num_ranks=2, layout=Layout(), folder=tmp_path / "step_2"):
        assert resumed == straight

"""The router's expert bias stays fp32 in a bfloat16 model. Nothing of ours: Megatron-Bridge 0.6.2 sees to it.

`_apply_mixed_precision_wrapper` in its models/model_provider.py puts the fp32 values back after the wrap. Without that
a bias of 0.1333 becomes 0.1338 for good (the router widens it at its first forward, after the bits are gone): the
experts are then balanced by other numbers than the ones that were saved.
"""

from collections.abc import Callable
from typing import Any

import pytest

from tests.tiny_runs import Checkpoint, built, logprobs, routers, with_expert_bias
from tests.worlds import run_world

pytestmark = pytest.mark.usefixtures("cpu_platform")


@pytest.fixture(scope="module")
def checkpoint(cpu_platform: None, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return with_expert_bias(tmp_path_factory.mktemp("moe"))


def _biases(checkpoint: Checkpoint, *, wrap: Callable[[Any], Any]) -> list[list[float]]:
    """Each router's bias after a forward."""
    run = built([], checkpoint=checkpoint, hooks=[wrap])
    logprobs(run)
    return [router.expert_bias.tolist() for router in routers(run.model)]


def _as_upstream(model: list[Any]) -> list[Any]:
    return model


def _as_megatron_core(model: list[Any]) -> list[Any]:
    """What `Float16Module` alone does: every parameter and buffer becomes bfloat16."""
    return [chunk.bfloat16() for chunk in model]


def test_the_bias_keeps_its_bits(checkpoint: Checkpoint) -> None:
    (kept,) = run_world(_biases, num_ranks=1, checkpoint=checkpoint, wrap=_as_upstream)
    (lost,) = run_world(_biases, num_ranks=1, checkpoint=checkpoint, wrap=_as_megatron_core)
    assert [round(value, 6) for value in kept[0]] == [0.1, 0.133333, 0.166667, 0.2]
    assert [round(value, 6) for value in lost[0]] == [0.100098, 0.133789, 0.166992, 0.200195]

"""Weights loaded over a built optimizer: the next step starts from them, not from what the optimizer copied before.

The learning rate is 0, so a step writes the optimizer's own copies over the model and changes nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from tests.tiny_runs import Checkpoint, bits, built, converted, step
from tests.worlds import run_world

pytestmark = pytest.mark.usefixtures("cpu_platform")

STILL = ["optimizer.lr=0.0", "optimizer.weight_decay=0.0"]
OFFLOAD = ["optimizer=adam_cpu_offload"]
HALF = [*OFFLOAD, "optimizer.optimizer_offload_fraction=0.5"]
SHARDED = [*OFFLOAD, "optimizer.use_precision_aware_optimizer=false"]
"""Refused by rule OP046; the fp32 shards of the distributed optimizer exist beside the copies in host memory."""


@pytest.fixture(scope="module")
def checkpoint(cpu_platform: None, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return converted(["model=tiny_moe"], folder=tmp_path_factory.mktemp("checkpoint"))


@dataclass(frozen=True, kw_only=True)
class Stepped:
    """The bits of every weight: built, loaded over that, and after one step; the number of copies in host memory."""

    built: dict[str, str]
    loaded: dict[str, str]
    stepped: dict[str, str]
    num_host_copies: int


def _load_and_step(words: Sequence[str], *, checkpoint: Checkpoint, sync: bool) -> Stepped:
    import torch
    from megatron.core.optimizer.cpu_offloading import HybridDeviceOptimizer

    from megatron_setup.fp32_copies import sync_fp32_copies

    run = built([*STILL, *words], checkpoint=checkpoint)
    as_built = bits(run.model)
    with torch.no_grad():
        for param in run.model[0].parameters():
            param.mul_(0.5)
    loaded = bits(run.model)
    if sync:
        sync_fp32_copies(run.optimizer)
    step(run, seed=0)
    inner = [each.optimizer for each in run.optimizer.chained_optimizers]
    copies = sum(len(one.gpu_params_map_cpu_copy) for one in inner if isinstance(one, HybridDeviceOptimizer))
    return Stepped(built=as_built, loaded=loaded, stepped=bits(run.model), num_host_copies=copies)


@pytest.mark.parametrize(
    ("words", "num_ranks", "is_offloaded"),
    [
        (OFFLOAD, 2, True),
        (HALF, 1, True),
        (SHARDED, 2, True),
        ([], 2, False),
        (["optimizer.use_distributed_optimizer=false"], 1, False),
    ],
    ids=["offload", "half", "sharded", "distributed", "plain"],
)
def test_a_step_keeps_what_was_loaded(
    checkpoint: Checkpoint, words: list[str], num_ranks: int, is_offloaded: bool
) -> None:
    ranks = run_world(_load_and_step, num_ranks=num_ranks, words=words, checkpoint=checkpoint, sync=True)
    for rank in ranks:
        assert rank.loaded != rank.built
        assert rank.stepped == rank.loaded
        assert bool(rank.num_host_copies) == is_offloaded


@pytest.mark.parametrize("words", [OFFLOAD, HALF, SHARDED], ids=["offload", "half", "sharded"])
def test_without_it_the_step_goes_back(checkpoint: Checkpoint, words: list[str]) -> None:
    (rank,) = run_world(_load_and_step, num_ranks=1, words=words, checkpoint=checkpoint, sync=False)
    assert rank.loaded != rank.built
    assert rank.stepped == rank.built

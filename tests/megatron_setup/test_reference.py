"""The reference computes what the model computed before the first step, and the policy never notices."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from tests.tiny_runs import (
    Built,
    Checkpoint,
    bits,
    built,
    configured,
    converted,
    logprobs,
    routers,
    step,
    with_expert_bias,
)
from tests.worlds import run_world

pytestmark = pytest.mark.usefixtures("cpu_platform")

NUM_STEPS = 2


@pytest.fixture(scope="module")
def dense(cpu_platform: None, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return converted(["model=tiny"], folder=tmp_path_factory.mktemp("dense"))


@pytest.fixture(scope="module")
def moe(cpu_platform: None, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return with_expert_bias(tmp_path_factory.mktemp("moe"))


@dataclass(frozen=True, kw_only=True)
class Course:
    """Log-probabilities of the first weights, of the reference after the steps and of the policy then, and its end."""

    first: list[list[float]]
    reference: list[list[float]]
    policy: list[list[float]]
    weights: dict[str, str]
    num_bytes: int
    is_freed: bool


def _course(words: Sequence[str], *, checkpoint: Checkpoint, reference: bool) -> Course:
    """Two steps, the reference between them and a third; without a reference only the steps."""
    from megatron_setup.lora import lora_hook
    from megatron_setup.reference import reference_state

    is_lora = "model.peft.enabled=true" in words
    run = built(
        words, checkpoint=checkpoint, hooks=[lora_hook(configured([*checkpoint.words, *words]))] if is_lora else []
    )
    kept = reference_state(run.model) if reference else None
    first = logprobs(run)
    for seed in range(NUM_STEPS):
        step(run, seed=seed)
    seen: list[list[float]] = []
    num_bytes = 0
    if kept is not None:
        num_bytes = kept.num_bytes
        seen = _seen(run, within=lambda: kept.in_force(run.model))
        kept.free()
    policy = logprobs(run)
    step(run, seed=NUM_STEPS)
    return Course(
        first=first,
        reference=seen,
        policy=policy,
        weights=bits(run.model),
        num_bytes=num_bytes,
        is_freed=kept is None or kept.num_bytes == 0,
    )


def _seen(run: Built, *, within: Callable[[], Any]) -> list[list[float]]:
    """The reference's log-probabilities, the second time: the first block ends with an exception."""
    with pytest.raises(KeyboardInterrupt), within():
        raise KeyboardInterrupt
    with within():
        return logprobs(run)


LATE = ["optimizer.overlap_param_gather=true", "optimizer.ddp.overlap_grad_reduce=true"]


@pytest.mark.parametrize(
    ("words", "num_ranks"),
    [
        ([], 2),
        (LATE, 2),
        pytest.param(["parallelism=pp2"], 2, marks=pytest.mark.slow),
        pytest.param(["optimizer.use_distributed_optimizer=false"], 1, marks=pytest.mark.slow),
    ],
    ids=["dp2", "late", "pp2", "plain"],
)
def test_the_reference_is_the_beginning(dense: Checkpoint, words: list[str], num_ranks: int) -> None:
    ranks = run_world(_course, num_ranks=num_ranks, words=words, checkpoint=dense, reference=True)
    without = run_world(_course, num_ranks=num_ranks, words=words, checkpoint=dense, reference=False)
    assert any(rank.first for rank in ranks)
    for rank, plain in zip(ranks, without, strict=True):
        assert rank.reference == rank.first == plain.first
        assert rank.policy == plain.policy
        assert rank.weights == plain.weights
        assert not rank.first or rank.policy != rank.first
        assert rank.num_bytes > 0
        assert rank.is_freed


def test_the_expert_bias_is_the_references_too(moe: Checkpoint) -> None:
    """A buffer that training moves although it has no gradient."""
    words = ["moe.moe_router_bias_update_rate=0.01"]
    (rank,) = run_world(_course, num_ranks=1, words=words, checkpoint=moe, reference=True)
    (plain,) = run_world(_course, num_ranks=1, words=words, checkpoint=moe, reference=False)
    (before,) = run_world(_biases, num_ranks=1, checkpoint=moe)
    assert rank.weights == plain.weights
    assert rank.reference == rank.first
    assert any(rank.weights[name] != bias for name, bias in before.items())


def _biases(checkpoint: Checkpoint) -> dict[str, str]:
    run = built([], checkpoint=checkpoint)
    assert routers(run.model)
    return {name: value for name, value in bits(run.model).items() if "expert_bias" in name}


def test_beside_adapters_nothing_is_kept(dense: Checkpoint) -> None:
    """The reference is the base model, which LoRA does not change."""
    words = ["model.peft.enabled=true", "model.peft.dim=4"]
    (rank,) = run_world(_course, num_ranks=1, words=words, checkpoint=dense, reference=True)
    (plain,) = run_world(_course, num_ranks=1, words=words, checkpoint=dense, reference=False)
    assert rank.num_bytes == 0
    assert rank.reference == rank.first
    assert rank.policy == plain.policy != rank.first
    assert rank.weights == plain.weights


def _wrong_uses(checkpoint: Checkpoint) -> list[str]:
    from megatron_setup.reference import reference_state

    run = built([], checkpoint=checkpoint)
    kept = reference_state(run.model)
    texts: list[str] = []

    def failing(use: Callable[[], Any]) -> None:
        with pytest.raises(AssertionError) as caught:
            use()
        texts.append(str(caught.value))

    with kept.in_force(run.model):
        failing(lambda: kept.in_force(run.model).__enter__())
        failing(kept.free)
    kept.free()
    failing(lambda: kept.in_force(run.model).__enter__())
    return texts


def test_it_is_in_force_once_and_not_after_it_was_freed(dense: Checkpoint) -> None:
    (texts,) = run_world(_wrong_uses, num_ranks=1, checkpoint=dense)
    assert texts == [
        "the reference is in force",
        "the host memory holds the policy's weights now",
        "the reference was freed",
    ]

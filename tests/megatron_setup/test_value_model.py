"""A value model out of the policy's pipeline: one number per token, trained, saved and loaded, in every layout."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_runs import Built, Checkpoint, bits, built, configured, converted, sequences
from tests.worlds import run_world

pytestmark = pytest.mark.usefixtures("cpu_platform")

FP32 = ["precision=fp32", "optimizer.lr=0.01"]
LENGTH = 16


@pytest.fixture(scope="module")
def tied(cpu_platform: None, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A policy whose output layer is its embedding, which must not become the value head's."""
    return converted([*FP32, "model.hf_config.tie_word_embeddings=true"], folder=tmp_path_factory.mktemp("tied"))


def _built(words: Sequence[str], *, checkpoint: Checkpoint) -> Built:
    from megatron_setup.value_model import value_head_hook

    config = configured([*checkpoint.words, *words])
    return built(words, checkpoint=checkpoint, hooks=[value_head_hook(config)])


def _values(run: Built, *, train: bool) -> list[Any]:
    """One pass of the schedule over four rows of 16 tokens, squared values as the loss; the values per micro-batch."""
    import torch

    from zero_kl.batches import micro_batches
    from zero_kl.score import run_schedule, this_device

    rows = [row[: LENGTH + 1] for row in sequences(8, seed=3)][4:]
    batches = micro_batches(rows, micro_batch_size=2, length=LENGTH, device=this_device())
    seen: list[Any] = []

    def loss(values: Any, *, batch: Any, **kind: bool) -> Any:
        seen.append(values.detach().tolist())
        assert values.shape == batch.tokens.shape
        assert values.dtype.itemsize == 4
        total = (values - 1.0).square().sum()
        return total, torch.tensor(values.numel(), dtype=torch.int), {}

    if train:
        for chunk in run.model:
            chunk.zero_grad_buffer()
        run.optimizer.zero_grad()
    run_schedule(run.model, batches=batches, loss=loss, forward_only=not train)
    if train:
        run.optimizer.step()
    return seen


@dataclass(frozen=True, kw_only=True)
class Course:
    """The values before, and after three steps, per micro-batch; empty off the last stage."""

    before: list[list[list[float]]]
    after: list[list[list[float]]]
    weights: dict[str, str]


def _train(words: Sequence[str], *, checkpoint: Checkpoint, folder: Path | None = None) -> Course:
    from megatron.bridge.training.model_load_save import save_megatron_model

    run = _built(words, checkpoint=checkpoint)
    before = _values(run, train=False)
    for _ in range(3):
        _values(run, train=True)
    if folder is not None:
        save_megatron_model(run.model, folder)
    return Course(before=before, after=_values(run, train=False), weights=bits(run.model))


def _difference(one: list[list[list[float]]], other: list[list[list[float]]]) -> float:
    flat = [[value for batch in side for row in batch for value in row] for side in (one, other)]
    return max(abs(a - b) for a, b in zip(*flat, strict=True))


@pytest.mark.parametrize(
    "layout", ["tp2_sp", "pp2", *(pytest.param(layout, marks=pytest.mark.slow) for layout in ("tp2", "dp2"))]
)
def test_layouts_agree(tied: Checkpoint, layout: str) -> None:
    """To the rounding of fp32: sums over ranks have another order."""
    (alone,) = run_world(_train, num_ranks=1, words=[], checkpoint=tied)
    ranks = run_world(_train, num_ranks=2, words=[f"parallelism={layout}"], checkpoint=tied)
    assert _difference(alone.before, alone.after) > 1e-2
    for rank in (rank for rank in ranks if rank.before):
        assert _difference(rank.before, alone.before) < 1e-5
        assert _difference(rank.after, alone.after) < 1e-3
    assert ranks[-1].before


def _resumed(words: Sequence[str], *, checkpoint: Checkpoint, folder: Path) -> Course:
    """The saved weights in a value model built anew."""
    from megatron_setup.iterations import newest_save
    from megatron_setup.weights import load_weights

    run = _built(words, checkpoint=checkpoint)
    save = newest_save(folder)
    assert save is not None
    load_weights(run.model, iteration=save.path)
    return Course(before=[], after=_values(run, train=False), weights=bits(run.model))


@pytest.mark.parametrize(
    "layout", ["pp2", *(pytest.param(layout, marks=pytest.mark.slow) for layout in ("single", "tp2"))]
)
def test_it_is_saved_and_loaded(tied: Checkpoint, tmp_path: Path, layout: str) -> None:
    num_ranks = 1 if layout == "single" else 2
    words = [f"parallelism={layout}"]
    trained = run_world(_train, num_ranks=num_ranks, words=words, checkpoint=tied, folder=tmp_path)
    resumed = run_world(_resumed, num_ranks=num_ranks, words=words, checkpoint=tied, folder=tmp_path)
    assert [rank.weights for rank in resumed] == [rank.weights for rank in trained]
    assert [rank.after for rank in resumed] == [rank.after for rank in trained]


def _head(words: Sequence[str], *, checkpoint: Checkpoint) -> list[float]:
    run = _built(words, checkpoint=checkpoint)
    heads = [chunk for chunk in run.model if chunk.module.post_process]
    return [value for chunk in heads for value in chunk.module.output_layer.weight.flatten().tolist()]


def test_the_head_is_the_seeds(tied: Checkpoint) -> None:
    """Not the first row of the policy's output layer, and the same number on every rank."""
    (alone,) = run_world(_head, num_ranks=1, words=[], checkpoint=tied)
    spread = run_world(_head, num_ranks=2, words=["parallelism=tp2"], checkpoint=tied)
    (other,) = run_world(_head, num_ranks=1, words=["job.seed=5"], checkpoint=tied)
    assert len(alone) == 64
    assert spread == [alone, alone]
    assert other != alone

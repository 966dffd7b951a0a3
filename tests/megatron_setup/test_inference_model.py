"""The second model after a refit: the weights of a model built directly in its layout, and the same generation."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from launcher.schema import RunConfig
from tests.tiny_runs import Checkpoint, bits, built, converted, step, unfinalized, with_expert_bias
from tests.worlds import run_world

pytestmark = pytest.mark.usefixtures("cpu_platform")

PROMPTS = [[3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8, 9, 7, 9]]


@pytest.fixture(scope="module")
def dense(cpu_platform: None, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return converted(["model=tiny"], folder=tmp_path_factory.mktemp("dense"))


@pytest.fixture(scope="module")
def moe(cpu_platform: None, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Experts, and a router with an expert bias: a persistent buffer."""
    return with_expert_bias(tmp_path_factory.mktemp("moe"))


@dataclass(frozen=True, kw_only=True)
class Generated:
    """What a model in some layout had and did on one rank."""

    weights: dict[str, str]
    tokens: list[tuple[int, ...]]
    logprobs: list[list[float]]


def _generated(model: Any, *, checkpoint: Checkpoint, config: RunConfig) -> Generated:
    from megatron.bridge.inference.text_generation import HFTokenizerAdapter
    from transformers import AutoTokenizer

    from zero_kl.generate import generate

    tokenizer = HFTokenizerAdapter(AutoTokenizer.from_pretrained(str(checkpoint.hf)))
    sampled = generate(model, prompts=PROMPTS, tokenizer=tokenizer, config=config, on_finished=lambda done, total: None)
    return Generated(
        weights=bits([model]),
        tokens=[each.tokens for each in sampled],
        logprobs=[each.logprobs.tolist() for each in sampled],
    )


def _by_refit(words: Sequence[str], *, checkpoint: Checkpoint, folder: Path) -> Generated:
    """Train, refit after each step, generate; the trained weights go to `folder` as a checkpoint."""
    import torch
    from megatron.bridge.training.model_load_save import save_megatron_model
    from megatron.core.tensor_parallel import get_cuda_rng_tracker

    from megatron_setup.inference_model import build_inference_model, refit

    run = built(words, checkpoint=checkpoint)
    before = [torch.get_rng_state(), *get_cuda_rng_tracker().get_states().values()]
    second = build_inference_model(run.config, snapshot=unfinalized(run.config, checkpoint=checkpoint))
    after = [torch.get_rng_state(), *get_cuda_rng_tracker().get_states().values()]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    for seed in range(2):
        step(run, seed=seed)
        refit(run.model, inference_model=second, config=run.config)
    save_megatron_model(run.model, folder)
    return _generated(second, checkpoint=checkpoint, config=run.config)


def _directly(words: Sequence[str], *, checkpoint: Checkpoint, folder: Path) -> Generated:
    """A model built in the words' layout from the trained checkpoint."""
    from megatron.core.utils import unwrap_model

    from megatron_setup.iterations import newest_save

    save = newest_save(folder)
    assert save is not None
    run = built(words, checkpoint=replace(checkpoint, iteration=save.path))
    (model,) = unwrap_model(run.model)
    return _generated(model, checkpoint=checkpoint, config=run.config)


TP1, TP2 = (f"generation.tensor_model_parallel_size={size}" for size in (1, 2))
PP1, PP2 = (f"generation.pipeline_model_parallel_size={size}" for size in (1, 2))
EP1 = "generation.expert_model_parallel_size=1"


@pytest.mark.parametrize(
    ("training", "generation", "direct", "num_ranks"),
    [
        (["parallelism=tp2_sp"], [TP1], [], 2),
        pytest.param(["parallelism=tp2_sp"], [TP1, PP2], ["parallelism=pp2"], 2, marks=pytest.mark.slow),
        pytest.param(["parallelism=pp2"], [PP1], [], 2, marks=pytest.mark.slow),
        pytest.param([], [TP2], ["parallelism=tp2"], 2, marks=pytest.mark.slow),
        pytest.param([], [], [], 1, marks=pytest.mark.slow),
    ],
    ids=["tp2-tp1", "tp2-pp2", "pp2-pp1", "dp2-tp2", "tp1-tp1"],
)
def test_a_refit_model_is_the_model_built_in_its_layout(
    dense: Checkpoint, tmp_path: Path, training: list[str], generation: list[str], direct: list[str], num_ranks: int
) -> None:
    _compare(dense, training=training, generation=generation, direct=direct, num_ranks=num_ranks, folder=tmp_path)


@pytest.mark.parametrize(
    ("training", "generation", "direct"),
    [
        (["parallelism=pp2"], [PP1], []),
        (["parallelism=ep2"], [EP1], []),
    ],
    ids=["pp2-pp1", "ep2-ep1"],
)
def test_experts_travel_with_their_bias(
    moe: Checkpoint, tmp_path: Path, training: list[str], generation: list[str], direct: list[str]
) -> None:
    _compare(moe, training=training, generation=generation, direct=direct, num_ranks=2, folder=tmp_path)


def _compare(
    checkpoint: Checkpoint,
    *,
    training: list[str],
    generation: list[str],
    direct: list[str],
    num_ranks: int,
    folder: Path,
) -> None:
    refitted = run_world(
        _by_refit, num_ranks=num_ranks, words=[*training, *generation], checkpoint=checkpoint, folder=folder
    )
    wanted = run_world(_directly, num_ranks=num_ranks, words=direct, checkpoint=checkpoint, folder=folder)
    assert refitted == wanted

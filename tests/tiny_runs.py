"""Tiny models on gloo ranks for tests: converted once, built by the pipeline's functions, trained, compared by bits.

Everything but `converted` is for functions that run inside a world (`tests.worlds`).
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.compose import compose
from launcher.schema import RunConfig
from tests.worlds import run_world

SIZES = ["model.seq_length=64", "performance.micro_batch_size=2", "generation.max_new_tokens=6"]
VOCABULARY = 512


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A Megatron checkpoint, the words that its model needs, and the Hugging Face folder with its tokenizer."""

    words: tuple[str, ...]
    hf: Path
    iteration: Path


def converted(words: Sequence[str], *, folder: Path) -> Checkpoint:
    """The random model of the words, converted in a world of one."""
    (iteration,) = run_world(_convert, num_ranks=1, config=configured(words), folder=folder)
    return Checkpoint(words=tuple(words), hf=folder / "hf", iteration=Path(iteration))


def _convert(config: RunConfig, *, folder: Path) -> str:
    from megatron.core import parallel_state

    from megatron_setup.convert import convert_with_bridge
    from megatron_setup.random_model import make_random_hf_model

    make_random_hf_model(folder / "hf", hf_config=config.model.hf_config, dtype=config.precision.dtype.value, seed=0)
    convert_with_bridge(config, source=folder / "hf", target=folder / "megatron")
    parallel_state.destroy_model_parallel()
    return _newest(folder / "megatron")


BIASED = ("moe.moe_router_enable_expert_bias=true", "+model.model_overrides.moe_router_score_function=sigmoid")


def with_expert_bias(folder: Path) -> Checkpoint:
    """A mixture of experts whose router has a bias per expert, of values that bfloat16 cannot hold.

    Made of Megatron's own random weights: Qwen's checkpoints have no such bias, and Bridge converts those that have one
    with Transformer Engine's experts only.
    """
    plain = converted(["model=tiny_moe"], folder=folder)
    (iteration,) = run_world(_save_biased, num_ranks=1, plain=plain, folder=folder / "biased")
    return Checkpoint(words=(*plain.words, *BIASED), hf=plain.hf, iteration=Path(iteration))


def _save_biased(plain: Checkpoint, *, folder: Path) -> str:
    import torch
    from megatron.bridge.training.model_load_save import save_megatron_model
    from megatron.core import parallel_state

    run = built([*BIASED, "model.perform_initialization=true"], checkpoint=plain, load=False)
    for router in routers(run.model):
        router.expert_bias.copy_(torch.linspace(0.1, 0.2, len(router.expert_bias)))
    save_megatron_model(run.model, folder)
    parallel_state.destroy_model_parallel()
    return _newest(folder)


def _newest(root: Path) -> str:
    from megatron_setup.iterations import newest_save

    save = newest_save(root)
    assert save is not None
    return str(save.path)


def routers(model: Sequence[Any]) -> list[Any]:
    """The routers of all layers."""
    from megatron.core.transformer.moe.router import Router

    return [module for chunk in model for module in chunk.modules() if isinstance(module, Router)]


def configured(words: Sequence[str]) -> RunConfig:
    """The configuration of a command line, at the tests' sizes."""
    return compose([*SIZES, *words]).config


@dataclass(frozen=True, kw_only=True)
class Built:
    """What the pipeline made on this rank."""

    config: RunConfig
    provider: Any
    model: list[Any]
    optimizer: Any


def built(
    words: Sequence[str], *, checkpoint: Checkpoint, load: bool = True, hooks: Sequence[Callable[..., Any]] = ()
) -> Built:
    """Provider, groups, model and optimizer of a checkpoint, by the pipeline's own functions."""
    from megatron_setup.build import build_model, build_optimizer, finalize_provider
    from megatron_setup.megatron_config import build_megatron_config

    config = configured([*checkpoint.words, *words])
    provider = unfinalized(config, checkpoint=checkpoint)
    finalize_provider(config, provider=provider)
    provider.initialize_model_parallel(seed=1)
    container = build_megatron_config(
        config,
        provider=provider,
        hf_folder=checkpoint.hf,
        saves=checkpoint.hf.parent / "saves",
        resume=None,
        peft=None,
    )
    iteration = checkpoint.iteration if load else None
    model = build_model(config, container=container, iteration=iteration, hooks=hooks)
    optimizer, _ = build_optimizer(config, container=container, model=model)
    return Built(config=config, provider=provider, model=model, optimizer=optimizer)


def unfinalized(config: RunConfig, *, checkpoint: Checkpoint) -> Any:
    """The run's provider as it is before `finalize()`."""
    from launcher.schema.model import CheckpointFormat
    from megatron_setup.build import build_provider
    from megatron_setup.model_source import ModelSource

    source = ModelSource(
        hf_folder=checkpoint.hf,
        iteration=checkpoint.iteration,
        format=CheckpointFormat.megatron_bridge,
        chosen="the test's",
    )
    return build_provider(config, source=source)


def sequences(count: int, *, seed: int) -> list[list[int]]:
    """Random token ids, 12 tokens and more each."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, VOCABULARY, (12 + 2 * i,), generator=generator).tolist() for i in range(count)]


def step(run: Built, *, seed: int) -> None:
    """One optimizer step on four random sequences, other ones on each data-parallel rank."""
    from megatron.core import parallel_state

    from zero_kl.score import policy_gradient_step

    policy_gradient_step(
        run.model,
        optimizer=run.optimizer,
        sequences=sequences(4, seed=seed + 100 * parallel_state.get_data_parallel_rank()),
        prompt_lengths=[5] * 4,
        advantages=[1.0, -0.5, 0.25, 2.0],
        micro_batch_size=2,
        row_multiple=2,
    )


def logprobs(run: Built) -> list[list[float]]:
    """Log-probabilities of three fixed sequences; an empty list off the last stage."""
    from zero_kl.score import score

    rows = score(
        run.model, sequences=sequences(3, seed=7), micro_batch_size=2, row_multiple=2, on_batch=lambda done, total: None
    )
    return [row.tolist() for row in rows]


def bits(modules: Sequence[Any]) -> dict[str, str]:
    """A hash of the bytes of every parameter and persistent buffer, by name without the wrappers' prefix."""
    tensors = {name: tensor for module in modules for name, tensor in module.state_dict().items() if tensor is not None}
    return {name.replace("module.", ""): hashed(tensor) for name, tensor in tensors.items() if "_extra" not in name}


def hashed(tensor: Any) -> str:
    """A hash: a tensor would be sent as shared memory that dies with its rank."""
    import torch

    return hashlib.sha256(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()

"""Tiny models on gloo ranks for tests: converted once, built by the pipeline's own functions, trained, compared by bits.

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


def converted(words: Sequence[str], *, folder: Path) -> Path:
    """The run's random model as a Megatron checkpoint, made in a world of one; the Hugging Face folder is folder/hf."""
    (iteration,) = run_world(_convert, num_ranks=1, config=configured(words), folder=folder)
    return Path(iteration)


def _convert(config: RunConfig, *, folder: Path) -> str:
    from megatron.core import parallel_state

    from megatron_setup.convert import convert_with_bridge
    from megatron_setup.iterations import newest_save
    from megatron_setup.random_model import make_random_hf_model

    make_random_hf_model(folder / "hf", hf_config=config.model.hf_config, dtype=config.precision.dtype.value, seed=0)
    convert_with_bridge(config, source=folder / "hf", target=folder / "megatron")
    parallel_state.destroy_model_parallel()
    return str(newest_save(folder / "megatron").path)


def configured(words: Sequence[str]) -> RunConfig:
    """The configuration of a command line, at the tests' sizes."""
    return compose([*SIZES, *words]).config


@dataclass(frozen=True, kw_only=True)
class Built:
    """What the pipeline made on this rank."""

    config: RunConfig
    model: list[Any]
    optimizer: Any


def built(
    words: Sequence[str], *, iteration: Path, weights: Path | None = None, hooks: Sequence[Callable[..., Any]] = ()
) -> Built:
    """Provider, groups, model and optimizer of a `converted` checkpoint; weights from another iteration where given."""
    from megatron_setup.build import build_model, build_optimizer, build_provider
    from megatron_setup.megatron_config import build_megatron_config

    config = configured(words)
    provider = build_provider(config, iteration=iteration)
    provider.initialize_model_parallel(seed=1)
    hf = iteration.parents[1] / "hf"
    container = build_megatron_config(
        config, provider=provider, hf_folder=hf, saves=hf.parent / "saves", resume=None, peft=None
    )
    model = build_model(config, container=container, iteration=weights or iteration, hooks=hooks)
    optimizer, _ = build_optimizer(config, container=container, model=model)
    return Built(config=config, model=model, optimizer=optimizer)


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

"""Building on real gloo ranks: frozen routers, gradients reduced during the backward pass, wrong checkpoints."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from launcher.compose import compose
from launcher.errors import ConfigError
from launcher.schema import RunConfig
from tests.worlds import run_world

pytestmark = pytest.mark.usefixtures("cpu_platform")

SIZES = ["model.seq_length=64", "performance.micro_batch_size=2"]


def _convert(config: RunConfig, *, folder: Path) -> Path:
    """The tiny model as a Megatron checkpoint; leaves no model-parallel groups behind."""
    from megatron.core import parallel_state

    from megatron_setup.convert import convert_with_bridge
    from megatron_setup.iterations import newest_save
    from megatron_setup.random_model import make_random_hf_model

    make_random_hf_model(folder / "hf", hf_config=config.model.hf_config, dtype="bfloat16", seed=0)
    convert_with_bridge(config, source=folder / "hf", target=folder / "megatron")
    parallel_state.destroy_model_parallel()
    return newest_save(folder / "megatron").path


def _checkpoint(words: Sequence[str], *, folder: Path) -> str:
    return str(_convert(compose(words).config, folder=folder))


@pytest.fixture(scope="module")
def checkpoint(cpu_platform: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A converted tiny MoE model."""
    folder = tmp_path_factory.mktemp("checkpoint")
    (iteration,) = run_world(_checkpoint, num_ranks=1, words=["model=tiny_moe"], folder=folder)
    return Path(iteration)


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The bits of every parameter before and after the steps, and what the provider said."""

    before: dict[str, str]
    after: dict[str, str]
    seq_length: int
    softmax_scale: float | None

    @property
    def moved(self) -> set[str]:
        """The parameters that the steps changed."""
        return {name for name, bits in self.before.items() if self.after[name] != bits}


def _train(words: Sequence[str], *, iteration: Path) -> Trained:
    """Two optimizer steps, over two and over four microbatches a rank."""
    import torch
    from megatron.core import parallel_state

    from megatron_setup.build import build_model, build_optimizer, build_provider
    from zero_kl.score import policy_gradient_step

    config = compose(["model=tiny_moe", *SIZES, *words]).config
    provider = build_provider(config, iteration=iteration)
    provider.initialize_model_parallel(seed=1)
    model = build_model(config, provider=provider, iteration=iteration)
    optimizer = build_optimizer(config, model=model)
    before = _bits(model[0])
    generator = torch.Generator().manual_seed(parallel_state.get_data_parallel_rank())
    for num_sequences in (4, 8):
        policy_gradient_step(
            model,
            optimizer=optimizer,
            sequences=[torch.randint(0, 500, (20 + i,), generator=generator).tolist() for i in range(num_sequences)],
            prompt_lengths=[5] * num_sequences,
            advantages=[1.0, -0.5] * (num_sequences // 2),
            micro_batch_size=2,
            row_multiple=1,
        )
    after = _bits(model[0])
    parallel_state.destroy_model_parallel()
    return Trained(before=before, after=after, seq_length=provider.seq_length, softmax_scale=provider.softmax_scale)


def _bits(module: Any) -> dict[str, str]:
    """A hash of every parameter's bytes: a tensor would be sent as shared memory that dies with its rank."""
    import torch

    tensors = {name: param.detach().contiguous().view(torch.uint8) for name, param in module.named_parameters()}
    return {name: hashlib.sha256(tensor.numpy().tobytes()).hexdigest() for name, tensor in tensors.items()}


def test_routers_are_frozen_and_the_rest_is_not(checkpoint: Path) -> None:
    (free,) = run_world(_train, num_ranks=1, words=[], iteration=checkpoint)
    (frozen,) = run_world(_train, num_ranks=1, words=["moe.freeze_moe_router=true"], iteration=checkpoint)
    routers = {name for name in frozen.before if "router" in name}
    assert routers
    assert routers <= free.moved
    assert frozen.moved & routers == set()
    assert frozen.moved


def test_overrides_are_in_force(checkpoint: Path) -> None:
    words = ["+model.model_overrides.softmax_scale=0.25"]
    (trained,) = run_world(_train, num_ranks=1, words=words, iteration=checkpoint)
    assert trained.softmax_scale == 0.25
    assert trained.seq_length == 64


def test_reducing_during_the_backward_pass_changes_nothing(checkpoint: Path) -> None:
    """Not held back, a reduction would start at the second step's second microbatch: megatron-core counts in the first.

    Unclipped, since the norm over several buckets is added in another order than over one.
    """
    unclipped = ["optimizer.clip_grad=0"]
    overlapped = ["optimizer.ddp.overlap_grad_reduce=true", "optimizer.ddp.bucket_size=20000"]
    plain = run_world(_train, num_ranks=2, words=unclipped, iteration=checkpoint)
    early = run_world(_train, num_ranks=2, words=[*unclipped, *overlapped], iteration=checkpoint)
    for one, other in zip(plain, early, strict=True):
        assert one.moved
        assert one.after == other.after


def _build_with_heads(iteration: Path) -> str:
    from megatron_setup.build import build_model, build_provider

    config = compose(["model=tiny_moe", "mtp.mtp_num_layers=1"]).config
    provider = build_provider(config, iteration=iteration)
    provider.initialize_model_parallel(seed=1)
    try:
        build_model(config, provider=provider, iteration=iteration)
    except ConfigError as error:
        return str(error)
    return ""


def test_a_checkpoint_without_a_weight_of_the_model_names_it(checkpoint: Path) -> None:
    (text,) = run_world(_build_with_heads, num_ranks=1, iteration=checkpoint)
    assert f"error: {checkpoint} does not hold the weights of this model" in text
    assert "mtp.layers.0" in text
    assert len(text) < 400

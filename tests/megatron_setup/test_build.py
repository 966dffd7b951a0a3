"""Building on real gloo ranks: frozen routers, gradients reduced during the backward pass, wrong checkpoints."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from launcher.errors import ConfigError
from tests.tiny_runs import Checkpoint, bits, built, converted
from tests.worlds import run_world

pytestmark = pytest.mark.usefixtures("cpu_platform")


@pytest.fixture(scope="module")
def checkpoint(cpu_platform: None, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A converted tiny MoE model."""
    return converted(["model=tiny_moe"], folder=tmp_path_factory.mktemp("checkpoint"))


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


def _train(words: Sequence[str], *, checkpoint: Checkpoint) -> Trained:
    """Two optimizer steps, over two and over four microbatches a rank."""
    import torch
    from megatron.core import parallel_state

    from zero_kl.score import policy_gradient_step

    run = built(words, checkpoint=checkpoint)
    before = bits(run.model)
    generator = torch.Generator().manual_seed(parallel_state.get_data_parallel_rank())
    for num_sequences in (4, 8):
        policy_gradient_step(
            run.model,
            optimizer=run.optimizer,
            sequences=[torch.randint(0, 500, (20 + i,), generator=generator).tolist() for i in range(num_sequences)],
            prompt_lengths=[5] * num_sequences,
            advantages=[1.0, -0.5] * (num_sequences // 2),
            micro_batch_size=2,
            row_multiple=1,
        )
    after = bits(run.model)
    parallel_state.destroy_model_parallel()
    provider = run.provider
    return Trained(before=before, after=after, seq_length=provider.seq_length, softmax_scale=provider.softmax_scale)


def test_routers_are_frozen_and_the_rest_is_not(checkpoint: Checkpoint) -> None:
    (free,) = run_world(_train, num_ranks=1, words=[], checkpoint=checkpoint)
    (frozen,) = run_world(_train, num_ranks=1, words=["moe.freeze_moe_router=true"], checkpoint=checkpoint)
    routers = {name for name in frozen.before if "router" in name}
    assert routers
    assert routers <= free.moved
    assert frozen.moved & routers == set()
    assert frozen.moved


def test_overrides_are_in_force(checkpoint: Checkpoint) -> None:
    words = ["+model.model_overrides.softmax_scale=0.25"]
    (trained,) = run_world(_train, num_ranks=1, words=words, checkpoint=checkpoint)
    assert trained.softmax_scale == 0.25
    assert trained.seq_length == 64


def test_reducing_during_the_backward_pass_changes_nothing(checkpoint: Checkpoint) -> None:
    """Not held back, a reduction would start at the second step's second microbatch: megatron-core counts in the first.

    Unclipped, since the norm over several buckets is added in another order than over one.
    """
    unclipped = ["optimizer.clip_grad=0"]
    overlapped = ["optimizer.ddp.overlap_grad_reduce=true", "optimizer.ddp.bucket_size=20000"]
    plain = run_world(_train, num_ranks=2, words=unclipped, checkpoint=checkpoint)
    early = run_world(_train, num_ranks=2, words=[*unclipped, *overlapped], checkpoint=checkpoint)
    for one, other in zip(plain, early, strict=True):
        assert one.moved
        assert one.after == other.after


def _build_with_heads(checkpoint: Checkpoint) -> str:
    try:
        built(["mtp.mtp_num_layers=1"], checkpoint=checkpoint)
    except ConfigError as error:
        return str(error)
    return ""


def test_a_checkpoint_without_a_weight_of_the_model_names_it(checkpoint: Checkpoint) -> None:
    (text,) = run_world(_build_with_heads, num_ranks=1, checkpoint=checkpoint)
    assert f"error: {checkpoint.iteration} does not hold the weights of this model" in text
    assert "mtp.layers.0" in text
    assert len(text) < 400

"""The dispatcher and the router of fixed order inside a real model on gloo ranks, against megatron-core's own.

In fp32 on one CPU thread megatron-core's `scatter_add_` adds a token's rows in the order of its experts, so the two
agree to the bit there; what a GPU makes of it is in tests/gpu.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import pytest

from tests.tiny_runs import Checkpoint, built, converted
from tests.worlds import RankError, run_world

pytestmark = pytest.mark.usefixtures("cpu_platform")

FP32 = ["model=tiny_moe", "precision=fp32", "model.hf_config.num_experts_per_tok=3", "model.hf_config.num_experts=8"]


def _model(words: Sequence[str], *, checkpoint: Checkpoint) -> Any:
    return built(words, checkpoint=checkpoint).model[0]


@pytest.fixture(scope="module")
def checkpoint(cpu_platform: None, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A converted tiny model of 8 experts, top-3, in fp32."""
    return converted(FP32, folder=tmp_path_factory.mktemp("checkpoint"))


def _bits(tensor: Any) -> str:
    return hashlib.sha256(tensor.detach().float().numpy().tobytes()).hexdigest()


def _forward_and_backward(
    words: Sequence[str], *, checkpoint: Checkpoint, patched: bool, in_graph: bool
) -> dict[str, str]:
    """The bits of the logits and of every gradient."""
    import torch
    from megatron.core.transformer import cuda_graphs

    from launcher.patches import applied
    from zero_kl.kernels.moe import PATCHES

    with applied(PATCHES if patched else ()):
        model = _model(words, checkpoint=checkpoint)
        tokens = torch.arange(96).view(2, 48) % 200
        if in_graph:
            cuda_graphs._set_warmup_start()  # pyright: ignore[reportPrivateUsage]
        logits = model(tokens, torch.arange(48).expand(2, -1), None)
        logits.square().mean().backward()
    gradients = {name: _bits(p.main_grad) for name, p in model.named_parameters() if p.requires_grad}
    return {"logits": _bits(logits), **gradients}


@pytest.mark.parametrize("words", [[], ["parallelism=ep2"]], ids=["alone", "ep2"])
def test_nothing_changes_where_megatron_adds_in_this_order_too(words: list[str], checkpoint: Checkpoint) -> None:
    arguments = {"words": words, "checkpoint": checkpoint, "in_graph": False}
    num_ranks = 2 if words else 1
    ours = run_world(_forward_and_backward, num_ranks=num_ranks, patched=True, **arguments)
    assert len(ours[0]) > 10
    assert ours == run_world(_forward_and_backward, num_ranks=num_ranks, patched=False, **arguments)


def test_a_layer_in_a_graph_gives_the_same_logits(checkpoint: Checkpoint) -> None:
    arguments = {"words": [], "checkpoint": checkpoint, "patched": True}
    (graph,) = run_world(_forward_and_backward, num_ranks=1, in_graph=True, **arguments)
    (plain,) = run_world(_forward_and_backward, num_ranks=1, in_graph=False, **arguments)
    assert graph["logits"] == plain["logits"]


def _probabilities(*, patched: bool) -> tuple[str, str]:
    """Bits of the routing probabilities of the same logits, with gradients recorded and without."""
    import torch
    from megatron.core.transformer.moe import router

    from launcher.patches import applied
    from zero_kl.kernels.moe import PATCHES

    logits = torch.randn(4096, 64, generator=torch.Generator().manual_seed(0))
    with applied(PATCHES if patched else ()):
        with torch.no_grad():
            scored, _ = router.topk_routing_with_score_function(logits, 8)
        trained, _ = router.topk_routing_with_score_function(logits.requires_grad_(), 8)
    return _bits(scored), _bits(trained)


def test_probabilities_are_the_same_with_and_without_gradients() -> None:
    (scored, trained) = run_world(_probabilities, num_ranks=1, patched=True)[0]
    assert scored == trained


def test_ranks_that_share_experts_are_not_captured(checkpoint: Checkpoint) -> None:
    with pytest.raises(RankError, match="exchange the unused rows"):
        run_world(
            _forward_and_backward,
            num_ranks=2,
            words=["parallelism=ep2"],
            checkpoint=checkpoint,
            patched=True,
            in_graph=True,
        )

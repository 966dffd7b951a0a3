"""The dispatcher and the router of fixed order inside a real model on gloo ranks, against megatron-core's own.

In fp32 on one CPU thread megatron-core's `scatter_add_` adds a token's rows in the order of its experts, so the two
agree to the bit there; what a GPU makes of it is in tests/gpu.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.worlds import run_world

pytestmark = pytest.mark.usefixtures("cpu_platform")

FP32 = ["model=tiny_moe", "precision=fp32", "model.hf_config.num_experts_per_tok=3", "model.hf_config.num_experts=8"]


def _model(words: Sequence[str], *, iteration: Path) -> Any:
    from launcher.compose import compose
    from megatron_setup.build import build_model, build_provider

    config = compose([*FP32, *words]).config
    provider = build_provider(config, iteration=iteration)
    provider.initialize_model_parallel(seed=1)
    return build_model(config, provider=provider, iteration=iteration)[0]


def _convert(folder: Path) -> str:
    from launcher.compose import compose
    from megatron_setup.convert import convert_with_bridge
    from megatron_setup.iterations import newest_save
    from megatron_setup.random_model import make_random_hf_model

    config = compose(FP32).config
    make_random_hf_model(folder / "hf", hf_config=config.model.hf_config, dtype="float32", seed=0)
    convert_with_bridge(config, source=folder / "hf", target=folder / "megatron")
    return str(newest_save(folder / "megatron").path)


@pytest.fixture(scope="module")
def iteration(cpu_platform: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A converted tiny model of 8 experts, top-3, in fp32."""
    return Path(run_world(_convert, num_ranks=1, folder=tmp_path_factory.mktemp("checkpoint"))[0])


def _bits(tensor: Any) -> str:
    return hashlib.sha256(tensor.detach().float().numpy().tobytes()).hexdigest()


def _forward_and_backward(words: Sequence[str], *, iteration: Path, patched: bool, in_graph: bool) -> dict[str, str]:
    """The bits of the logits and of every gradient."""
    import torch
    from megatron.core.transformer import cuda_graphs

    from launcher.patches import applied
    from zero_kl.kernels.moe import PATCHES

    with applied(PATCHES if patched else ()):
        model = _model(words, iteration=iteration)
        tokens = torch.arange(96).view(2, 48) % 200
        if in_graph:
            cuda_graphs._set_warmup_start()  # pyright: ignore[reportPrivateUsage]
        logits = model(tokens, torch.arange(48).expand(2, -1), None)
        logits.square().mean().backward()
    gradients = {name: _bits(p.main_grad) for name, p in model.named_parameters() if p.requires_grad}
    return {"logits": _bits(logits), **gradients}


@pytest.mark.parametrize("words", [[], ["parallelism=ep2"]], ids=["alone", "ep2"])
def test_nothing_changes_where_megatron_adds_in_this_order_too(words: list[str], iteration: Path) -> None:
    arguments = {"words": words, "iteration": iteration, "in_graph": False}
    num_ranks = 2 if words else 1
    ours = run_world(_forward_and_backward, num_ranks=num_ranks, patched=True, **arguments)
    assert len(ours[0]) > 10
    assert ours == run_world(_forward_and_backward, num_ranks=num_ranks, patched=False, **arguments)


def test_a_layer_in_a_graph_gives_the_same_logits(iteration: Path) -> None:
    graph, plain = (
        run_world(_forward_and_backward, num_ranks=1, words=[], iteration=iteration, patched=True, in_graph=in_graph)[0]
        for in_graph in (True, False)
    )
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


def test_ranks_that_share_experts_are_not_captured(iteration: Path) -> None:
    from tests.worlds import RankError

    with pytest.raises(RankError, match="exchange the unused rows"):
        run_world(
            _forward_and_backward,
            num_ranks=2,
            words=["parallelism=ep2"],
            iteration=iteration,
            patched=True,
            in_graph=True,
        )

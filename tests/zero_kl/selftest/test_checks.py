"""The self-test on the CPU platform: sound kernels hold, and each check finds the fault that it is there for."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch

from launcher.compose import compose
from launcher.errors import NodeError
from launcher.schema import Backend, PlatformKind
from launcher.schema.zero_kl import ZeroKlConfig
from launcher.validate import read_architecture

if TYPE_CHECKING:
    from zero_kl.selftest.runner import Outcome

pytestmark = pytest.mark.usefixtures("cpu_platform")

DENSE, EXPERTS, FP32 = "model=tiny", "model=tiny_moe", "precision=fp32"


def _outcomes(*words: str, kernels: tuple[AbstractContextManager[None], ...] = ()) -> "list[Outcome]":
    from zero_kl.selftest.runner import self_test

    config = compose(list(words)).config
    with ExitStack() as stack:
        for each in kernels:
            stack.enter_context(each)
        return self_test(config, architecture=read_architecture(config.model))


def _found(outcomes: "list[Outcome]") -> dict[str, str]:
    return {o.check.name: o.found for o in outcomes if o.found is not None and o.check.name != "environment"}


def _sound() -> tuple[AbstractContextManager[None], ...]:
    from megatron_setup.cpu.attention import use_core
    from zero_kl.cpu_kernels import attention
    from zero_kl.kernels import enabled

    kernels = ZeroKlConfig(backend=Backend.cpu_reference)
    return enabled(kernels, platform=PlatformKind.cpu), use_core(attention)


@pytest.mark.parametrize("words", [(DENSE, FP32), (DENSE,), (EXPERTS, FP32), (EXPERTS,)], ids=" ".join)
def test_sound_kernels_hold(words: tuple[str, ...]) -> None:
    outcomes = _outcomes(*words, kernels=_sound())
    assert not _found(outcomes)
    names = {o.check.name for o in outcomes}
    assert ("combine" in names) == (EXPERTS in words)
    assert sum(o.seconds for o in outcomes) < 20


def test_ordinary_kernels_do_not() -> None:
    found = _found(_outcomes(DENSE, FP32))
    assert {"output_layer", "paged decode"} <= set(found)
    assert "between a batch of 1 and one of 512" in found["output_layer"]
    assert "core_attention, padded" not in found, "ordinary attention is inexact, not wrong"


@contextmanager
def _core(*, wrong: bool) -> Iterator[None]:
    """Attention with an empty window, as flash-attn-4 b30 and later give it; or split by the number of queries."""
    from megatron_setup.cpu.attention import use_core
    from zero_kl.cpu_kernels import attention

    def empty_window(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, scale: float, query_positions: torch.Tensor
    ) -> torch.Tensor:
        return torch.zeros_like(query)

    def split(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, scale: float, query_positions: torch.Tensor
    ) -> torch.Tensor:
        out = attention(query, key, value, scale=scale, query_positions=query_positions)
        return out if len(query) > 1 or len(key) < 64 else out * (1 + 2**-20)

    with use_core(empty_window if wrong else split):
        yield


def test_a_wrong_window_is_found_against_the_reference() -> None:
    found = _found(_outcomes(DENSE, kernels=(_core(wrong=True),)))
    assert {"core_attention, padded", "core_attention, packed"} <= set(found)
    assert "explains" in found["core_attention, padded"]


def test_keys_split_in_decode_are_found() -> None:
    found = _found(_outcomes(DENSE, FP32, kernels=(*_sound(), _core(wrong=False))))
    assert set(found) == {"paged decode"}
    assert found["paged decode"] == "1 of 1 rows differ: a request alone against training"


def test_expert_outputs_added_in_order_of_arrival_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from megatron.core.transformer.moe import moe_layer

    runs = iter(range(100))

    class Racing(moe_layer.MoEAlltoAllTokenDispatcher):
        def combine_postprocess(self, permutated_local_input_tokens: torch.Tensor) -> torch.Tensor:
            return super().combine_postprocess(permutated_local_input_tokens) * (1 + 2**-20 * next(runs))

    monkeypatch.setattr(moe_layer, "MoEAlltoAllTokenDispatcher", Racing)
    found = _found(_outcomes(EXPERTS, FP32, kernels=_sound()))
    assert found == {"combine": "2048 of 2048 tokens differ from run to run"}


def test_a_topk_that_sorts_in_training_only_is_found() -> None:
    from megatron_setup.cpu.attention import use_core
    from zero_kl.cpu_kernels import _KERNELS, attention, batch_invariant

    with pytest.MonkeyPatch.context() as monkey:
        monkey.delitem(_KERNELS, "topk")
        words = ("model.hf_config.num_experts_per_tok=4", "model.hf_config.num_experts=16")
        found = _found(_outcomes(EXPERTS, FP32, *words, kernels=(batch_invariant(), use_core(attention))))
    assert set(found) == {"top-k"}


def test_a_variable_that_is_not_set_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    from zero_kl.selftest.bench import Bench
    from zero_kl.selftest.in_force import check_environment
    from zero_kl.selftest.shapes import shapes_of

    config = compose(["+preset=zero_kl_hopper"]).config
    architecture = read_architecture(config.model)
    assert architecture is not None
    bench = Bench(config, shapes_of(config, architecture=architecture))
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    assert check_environment(bench) == "CUBLAS_WORKSPACE_CONFIG is :4096:8, not :0:0"


def raises(bench: Any) -> str | None:
    return bench.no_such_thing


def holds(bench: Any) -> str | None:
    del bench
    return None


def test_a_check_that_raises_has_found_its_error_and_stops_no_other() -> None:
    from zero_kl.selftest.runner import Bench, raise_if_failed, run_checks, shapes_of
    from zero_kl.selftest.table import Check

    config = compose([DENSE]).config
    architecture = read_architecture(config.model)
    assert architecture is not None
    checks = [
        Check(code="ZS901", name="raises", run=f"{__name__}.raises", why="it can"),
        Check(code="ZS902", name="holds", run=f"{__name__}.holds", why="it can"),
    ]
    outcomes = run_checks(Bench(config, shapes_of(config, architecture=architecture)), checks=checks)
    assert [o.found for o in outcomes] == ["AttributeError: 'Bench' object has no attribute 'no_such_thing'", None]
    with pytest.raises(NodeError, match=r"fails its self-test\n\nerror\[ZS901\]: raises: AttributeError"):
        raise_if_failed(outcomes)


def test_codes_and_names_are_unique() -> None:
    from zero_kl.selftest.table import CHECKS

    assert len({c.code for c in CHECKS}) == len({c.name for c in CHECKS}) == len(CHECKS)

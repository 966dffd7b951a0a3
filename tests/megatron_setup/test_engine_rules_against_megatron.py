"""The rules that only generation or the training forward meet, and null ETP, against the real Megatron."""

import logging
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import torch

from launcher.requirement import Subject, check_all
from launcher.schema.layout import derive_layout
from megatron_setup import cpu
from megatron_setup.parallelism import ROWS
from tests.megatron_setup.example_layouts import DENSE, MOE, subject
from tests.megatron_setup.upstream_layouts import build_first_stage, leave_world, make_groups, make_provider

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def megatron() -> Iterator[None]:
    """The CPU platform, without upstream's notices."""
    cpu.install()
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(autouse=True)
def no_world_is_left_behind() -> Iterator[None]:
    yield
    leave_world()


def _enter(layout: Subject) -> Any:
    """The finalized provider, with process groups made for it."""
    provider = make_provider(layout)
    provider.finalize()
    make_groups(provider, world_size=derive_layout(layout.config).world_size)
    return provider


def _codes(layout: Subject) -> set[str]:
    return {violation.row.code for violation in check_all(ROWS, subject=layout)}


@pytest.mark.parametrize(("requests", "fits"), [(33, False), (32, True)])
def test_requests_of_the_engine(requests: int, fits: bool) -> None:
    from megatron.core.inference.config import InferenceConfig
    from megatron.core.inference.contexts import DynamicInferenceContext

    layout = subject(DENSE, parallelism__tensor_model_parallel_size=2, generation__max_requests=requests)
    config = InferenceConfig(
        max_sequence_length=64, buffer_size_gb=0.01, block_size_tokens=16, max_requests=requests, max_tokens=128
    )
    provider = _enter(layout)
    with nullcontext() if fits else pytest.raises(AssertionError, match="max_requests must be divisible"):
        DynamicInferenceContext(model_config=provider, inference_config=config)
    assert ("PL082" not in _codes(layout)) is fits


def test_the_engine_takes_no_chunks() -> None:
    from megatron.core.inference.model_inference_wrappers.gpt.gpt_inference_wrapper import GPTInferenceWrapper

    layout = subject(
        DENSE, parallelism__pipeline_model_parallel_size=2, parallelism__virtual_pipeline_model_parallel_size=2
    )
    chunks = [SimpleNamespace(), SimpleNamespace()]
    with pytest.raises(AssertionError, match="interleaving schedule is not supported"):
        GPTInferenceWrapper(chunks, SimpleNamespace())
    assert "PL080" in _codes(layout)


def test_the_engine_would_get_a_shares_positions() -> None:
    """Rank 0 of CP 2 gets the first and the last quarter: a request of 9 tokens would jump from position 7 to 24."""
    from megatron.core import parallel_state
    from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding

    layout = subject(DENSE, parallelism__context_parallel_size=2)
    _enter(layout)
    rotary = RotaryEmbedding(4, 1.0, use_cpu_initialization=True, cp_group=parallel_state.get_context_parallel_group())
    positions = rotary(32)[:, 0, 0, 0].int().tolist()  # the first frequency is 1
    assert positions == [*range(8), *range(24, 32)]
    assert "PL081" in _codes(layout)


class _PastTheGuard(Exception):  # noqa: N818  not an error: it ends the forward where the test has seen enough
    pass


def _stop(*_: object, **__: object) -> NoReturn:
    raise _PastTheGuard


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_an_moe_layer_in_training(sequence_parallel: bool) -> None:
    layout = subject(MOE, parallelism__tensor_model_parallel_size=2, parallelism__sequence_parallel=sequence_parallel)
    layer = build_first_stage(_enter(layout)).decoder.layers[0].mlp
    layer.route = _stop
    with pytest.raises(_PastTheGuard if sequence_parallel else ValueError):
        layer(torch.zeros(4, 1, MOE.hidden_size, device="meta"))
    assert ("PL071" in _codes(layout)) is not sequence_parallel


@pytest.mark.parametrize(("tensor", "expert"), [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_null_expert_tensor_size_is_filled_in_as_upstream_does(tensor: int, expert: int) -> None:
    layout = subject(
        MOE, parallelism__tensor_model_parallel_size=tensor, parallelism__expert_model_parallel_size=expert
    )
    provider = make_provider(layout)
    provider.expert_tensor_parallel_size = None
    provider.finalize()
    assert provider.expert_tensor_parallel_size == derive_layout(layout.config).expert_tensor_parallel_size

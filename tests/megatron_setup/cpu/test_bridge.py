"""Hugging Face to Megatron and back through Bridge's own entry points, and Megatron's engine against its training."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.hf_configs import SERVED
from tests.worlds import run_world

pytestmark = pytest.mark.usefixtures("cpu_platform")

Converted = Callable[..., dict[str, Path]]


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Converted:
    """By model name and dtype: the random Hugging Face folder and its conversion, made once."""

    @cache
    def convert_once(name: str, dtype: str = "float32") -> dict[str, Path]:
        from tests.megatron_setup.cpu.tiny_bridge import convert

        root = tmp_path_factory.mktemp(f"{name}_{dtype}")
        folders = {"hf_folder": root / "hf", "megatron_folder": root / "megatron"}
        run_world(convert, num_ranks=1, name=name, dtype=dtype, **folders)
        return folders

    return convert_once


@pytest.mark.parametrize(
    ("name", "dtype", "layout"),
    [
        ("llama", "bfloat16", {}),
        ("llama", "float32", {"pp": 2}),
        ("qwen2", "float32", {"tp": 2}),
        ("qwen3", "float32", {}),
        ("qwen3_moe", "float32", {"ep": 2}),
    ],
)
def test_export_gives_the_same_bits_back(
    name: str, dtype: str, layout: dict[str, int], converted: Converted, tmp_path: Path
) -> None:
    import torch

    from tests.megatron_setup.cpu.tiny_bridge import Layout, export, weights

    folders = converted(name, dtype)
    run_world(
        export,
        num_ranks=2 if layout else 1,
        target=tmp_path / "exported",
        layout=Layout(**layout),
        **folders,
    )
    original, exported = weights(folders["hf_folder"]), weights(tmp_path / "exported")
    assert original.keys() == exported.keys()
    assert {t.dtype for t in exported.values()} == {getattr(torch, dtype)}
    assert [key for key in original if not torch.equal(original[key], exported[key])] == []


@pytest.mark.parametrize("name", SERVED)
def test_the_engine_agrees_with_training_only_with_the_kernels(name: str, converted: Converted) -> None:
    from tests.megatron_setup.cpu.tiny_bridge import NUM_NEW_TOKENS, PROMPT_LENGTHS, Agreement, Layout, sample_and_score

    arguments: dict[str, Any] = {"layout": Layout(), **converted(name)}
    num_tokens = NUM_NEW_TOKENS * len(PROMPT_LENGTHS)
    exact = Agreement(num_tokens=num_tokens, num_batched_differ=0, num_alone_differ=0)
    assert run_world(sample_and_score, num_ranks=1, invariant=True, **arguments) == [exact]
    (ordinary,) = run_world(sample_and_score, num_ranks=1, invariant=False, **arguments)
    assert ordinary.num_batched_differ > 0
    assert ordinary.num_alone_differ > 0


@pytest.mark.parametrize(("name", "layout"), [("qwen3", {"tp": 2}), ("qwen3", {"pp": 2}), ("qwen3_moe", {"ep": 2})])
def test_the_engine_agrees_with_training_on_two_ranks(name: str, layout: dict[str, int], converted: Converted) -> None:
    from tests.megatron_setup.cpu.tiny_bridge import Layout, sample_and_score

    *_, last = run_world(sample_and_score, num_ranks=2, layout=Layout(**layout), invariant=True, **converted(name))
    assert last.num_batched_differ == 0

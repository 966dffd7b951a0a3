"""Nearness: the right name first."""

import pytest

from launcher.suggest import NEAR, nearest, nearness


@pytest.mark.parametrize(
    ("word", "names", "first"),
    [
        ("te-native", ["none", "megatron", "te_native"], "te_native"),
        ("BFLOAT16", ["float16", "bfloat16"], "bfloat16"),
        ("tp", ["virtual_pipeline_model_parallel_size", "tensor_model_parallel_size"], "tensor_model_parallel_size"),
        (
            "vpp",
            ["pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size"],
            "virtual_pipeline_model_parallel_size",
        ),
        ("seed", ["model.init_seed", "job.seed"], "job.seed"),
        ("jub.seed", ["model.seed", "job.seed"], "job.seed"),
    ],
)
def test_the_nearest_comes_first_and_is_near(word: str, names: list[str], first: str) -> None:
    assert nearest(word, names=names)[0] == first
    assert nearness(word, name=first) >= NEAR


def test_equally_near_names_keep_their_order() -> None:
    assert nearest("x", names=["b", "a", "c"]) == ["b", "a", "c"]


@pytest.mark.parametrize(("word", "name"), [("xyzzy", "job.seed"), ("t", "tensor_model_parallel_size"), ("", "a")])
def test_what_is_not_near(word: str, name: str) -> None:
    assert nearness(word, name=name) < NEAR

"""Which layout generation has, when that means a second model, and what its provider gets."""

import pytest

from launcher.compose import compose
from launcher.schema.generation import RefitMethod
from megatron_setup.second_model import generation_layout, has_second_model, inference_fields, refit_method

TP1 = "generation.tensor_model_parallel_size=1"
UNEVEN = [
    "parallelism=pp2",
    "parallelism.num_layers_in_first_pipeline_stage=1",
    "parallelism.num_layers_in_last_pipeline_stage=3",
]


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ([], False),
        (["parallelism=tp2"], False),
        (["parallelism=tp2", "generation.tensor_model_parallel_size=2"], False),
        (["parallelism=tp2", TP1], True),
        (["generation.pipeline_model_parallel_size=2"], True),
        (["parallelism=ep2", "generation.expert_model_parallel_size=1"], True),
        (["parallelism=ep2", "generation.expert_tensor_parallel_size=1"], False),
        (["parallelism=ep2", "generation.expert_tensor_parallel_size=2"], True),
        (UNEVEN, False),
    ],
)
def test_another_size_means_a_second_model(words: list[str], wanted: bool) -> None:
    assert has_second_model(compose(words).config) is wanted


def test_sequences_are_split_only_with_tensor_parallelism() -> None:
    assert not generation_layout(compose(["parallelism=tp2_sp", TP1]).config).sequence_parallel
    assert generation_layout(compose(["parallelism=tp2_sp"]).config).sequence_parallel


def test_an_uneven_split_is_for_its_own_number_of_stages() -> None:
    same = inference_fields(compose(UNEVEN).config)
    other = inference_fields(compose([*UNEVEN, "generation.pipeline_model_parallel_size=1"]).config)
    names = ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage")
    assert [same[name] for name in names] == [1, 3]
    assert [other[name] for name in names] == [None, None]


def test_nothing_of_training_is_left() -> None:
    words = ["performance.recompute_granularity=full", "performance.recompute_method=uniform"]
    fields = inference_fields(compose([*words, "parallelism.context_parallel_size=2"]).config)
    assert [fields[f"recompute_{name}"] for name in ("granularity", "method", "num_layers")] == [None, None, None]
    assert fields["context_parallel_size"] == 1
    assert fields["perform_initialization"] is False


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ([], RefitMethod.gloo),
        (["platform=hopper"], RefitMethod.nccl),
        (["platform=hopper", "generation.refit_method=gloo"], RefitMethod.gloo),
    ],
)
def test_null_is_what_the_platform_has(words: list[str], wanted: RefitMethod) -> None:
    assert refit_method(compose(words).config) is wanted

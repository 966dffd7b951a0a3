"""What generation hands to the engine, against megatron-core's own InferenceConfig and SamplingParams."""

from enum import Enum
from typing import Any

import pytest

from launcher.compose import compose
from launcher.keys import keys_of
from tests.other_values import with_another_value
from zero_kl.inference import inference_fields, sampling_fields


def plain(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value.value if isinstance(value, Enum) else value for name, value in fields.items()}


def test_no_graphs_are_null_upstream() -> None:
    assert inference_fields(compose([]).config)["num_cuda_graphs"] is None
    assert inference_fields(compose(["generation.num_cuda_graphs=16"]).config)["num_cuda_graphs"] == 16


def test_the_longest_sequence_is_trainings_unless_told() -> None:
    assert inference_fields(compose(["model.seq_length=256"]).config)["max_sequence_length"] == 256
    assert inference_fields(compose(["generation.max_sequence_length=100"]).config)["max_sequence_length"] == 100


@pytest.mark.parametrize(("top_p", "upstream"), [(1.0, 0.0), (0.5, 0.5)])
def test_top_p_off_is_0_upstream(top_p: float, upstream: float) -> None:
    generation = compose([f"generation.top_p={top_p}"]).config.generation
    assert sampling_fields(generation)["top_p"] == upstream


@pytest.mark.usefixtures("cpu_platform")
def test_upstream_takes_every_value() -> None:
    from megatron.core.inference.config import InferenceConfig, KVCacheManagementMode
    from megatron.core.inference.sampling_params import SamplingParams

    base = compose([]).config
    for key in (key for key in keys_of() if key.startswith("generation.")):
        config = with_another_value(base, key=key)
        InferenceConfig(**plain(inference_fields(config)))
        SamplingParams(**plain(sampling_fields(config.generation)))
    default = InferenceConfig(**plain(inference_fields(base)))
    assert default.kv_cache_management_mode == KVCacheManagementMode.RECOMPUTE
    assert default.materialize_only_last_token_logits

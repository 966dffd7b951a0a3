"""What generation hands to the engine, against megatron-core's own InferenceConfig and SamplingParams."""

from enum import Enum
from typing import Any

import pytest

from launcher.compose import compose
from launcher.keys import keys_of
from launcher.requirement import Subject, check_all
from tests.other_values import with_another_value
from zero_kl.inference import inference_fields, sampling_fields
from zero_kl.requirements import REQUIREMENTS
from zero_kl.requirements.kernels import ROW_MULTIPLE


def plain(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value.value if isinstance(value, Enum) else value for name, value in fields.items()}


def test_no_graphs_are_null_upstream() -> None:
    assert inference_fields(compose([]).config)["num_cuda_graphs"] is None
    assert inference_fields(compose(["generation.num_cuda_graphs=16"]).config)["num_cuda_graphs"] == 16


@pytest.mark.usefixtures("cpu_platform")
@pytest.mark.parametrize("max_requests", [32, 64, 100, 128, 192, 256, 320])
def test_zero_kl_takes_the_graphs_whose_sizes_upstream_makes_of_whole_tiles(max_requests: int) -> None:
    from megatron.core.inference.batch_dimensions_utils import CUDAGraphBatchDimensionBuilder as Builder
    from megatron.core.inference.config import CudaGraphSizingDistribution

    for distribution in CudaGraphSizingDistribution:
        for count in (1, 2, 3, 4, 5, 16):
            sizes = Builder._calculate_cuda_graph_token_counts(1, count, max_requests, distribution)
            words = (f"max_requests={max_requests}", f"num_cuda_graphs={count}")
            words += (f"cuda_graph_sizing_distribution={distribution.value}",)
            overrides = ["+preset=zero_kl_hopper", "generation=graphs", *(f"generation.{word}" for word in words)]
            found = check_all(REQUIREMENTS, subject=Subject(config=compose(overrides).config, architecture=None))
            refused = "ZK068" in {violation.row.code for violation in found}
            assert refused == any(size % ROW_MULTIPLE for size in sizes), (words, sizes)


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

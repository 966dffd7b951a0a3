"""What the tables hand on, against upstream's real objects: Bridge's providers, megatron-core's configurations."""

from collections.abc import Sequence
from typing import Any

import pytest

from launcher.compose import compose
from launcher.errors import ConfigError
from launcher.keys import keys_of
from launcher.schema import RunConfig
from launcher.schema.optimizer import OptimizerKind
from megatron_setup import tables
from megatron_setup.model_overrides import merge_overrides
from megatron_setup.optimizer import ddp_fields, optimizer_fields
from tests.hf_configs import HF_CONFIGS
from tests.other_values import with_another_value

pytestmark = pytest.mark.usefixtures("cpu_platform")

MODELS = sorted(HF_CONFIGS)
VISION_ONLY = {"freeze_language_model", "freeze_vision_model", "freeze_vision_projection"}
"""Fields of providers with a vision tower; Bridge's text models have none of them."""


def provider_of(name: str) -> Any:
    from megatron.bridge import AutoBridge
    from transformers import AutoConfig

    config = AutoConfig.for_model(**HF_CONFIGS[name], architectures=[ARCHITECTURES[name]])
    return AutoBridge.from_hf_config(config).to_megatron_provider(load_weights=False)


ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
}


def fields_of(provider: Any, *, words: Sequence[str] = ()) -> dict[str, Any]:
    return tables.provider_fields(compose(words).config, has_experts=bool(provider.num_moe_experts))


@pytest.mark.parametrize("model", MODELS)
def test_defaults_are_in_force(model: str) -> None:
    from megatron_setup.provider import finalize, set_fields

    provider = provider_of(model)
    fields = fields_of(provider)
    set_fields(provider, fields=fields)
    finalize(provider, fields=fields)
    assert provider.seq_length == 128
    assert provider.bf16


def test_values_arrive_in_upstreams_own_types() -> None:
    import torch
    from megatron.core.transformer.enums import AttnBackend, InferenceCudaGraphScope

    from megatron_setup.provider import finalize, set_fields

    provider = provider_of("qwen3_moe")
    words = [
        "precision=fp32",
        "performance.attention_backend=flash",
        "performance.recompute_granularity=selective",
        "performance.recompute_modules=[mlp,layernorm]",
        "performance.layernorm_epsilon=1e-3",
        "parallelism.pipeline_model_parallel_size=2",
        "parallelism.pipeline_model_parallel_layout=Et|tL",
        "moe.moe_router_load_balancing_type=none",
    ]
    fields = fields_of(provider, words=words)
    set_fields(provider, fields=fields)
    finalize(provider, fields=fields)
    assert provider.params_dtype is provider.pipeline_dtype is torch.float32
    assert not provider.bf16
    assert provider.attention_backend is AttnBackend.flash
    assert provider.inference_cuda_graph_scope is InferenceCudaGraphScope.none
    assert provider.recompute_modules == ["mlp", "layernorm"]
    assert provider.layernorm_epsilon == 1e-3
    assert repr(provider.pipeline_model_parallel_layout) == "Et|tL"
    assert provider.moe_router_load_balancing_type == "none"


def test_null_is_handed_on_where_it_means_something() -> None:
    provider = provider_of("qwen3_moe")
    fields = fields_of(provider, words=["moe.moe_router_dtype=null"])
    assert fields["moe_router_dtype"] is None
    assert fields["mtp_num_layers"] is None
    assert "moe_grouped_gemm" not in fields


def test_unknown_field_is_refused_with_the_nearest() -> None:
    from megatron_setup.provider import set_fields

    with pytest.raises(ConfigError, match=r"Qwen3\w*|GPT\w*") as caught:
        set_fields(provider_of("qwen3"), fields={"seq_lenght": 5})
    assert "has no field seq_lenght" in str(caught.value)
    assert "nearest: seq_length" in str(caught.value)


@pytest.mark.parametrize("key", [f"model.{name}" for name in sorted(VISION_ONLY)])
def test_a_vision_switch_on_a_text_model_is_refused(key: str) -> None:
    from megatron_setup.provider import set_fields

    provider = provider_of("qwen2")
    with pytest.raises(ConfigError, match=key.rpartition(".")[2]):
        set_fields(provider, fields=fields_of(provider, words=[f"{key}=true"]))


def test_a_silent_change_is_told() -> None:
    """Bridge turns sequence parallelism off where there is no tensor parallelism, without a word."""
    from megatron_setup.provider import finalize, set_fields

    provider = provider_of("qwen3")
    fields = fields_of(provider, words=["parallelism.sequence_parallel=true"])
    set_fields(provider, fields=fields)
    with pytest.raises(ConfigError, match="sequence_parallel: asked True, in force False"):
        finalize(provider, fields=fields)


def test_upstreams_own_refusal_comes_through() -> None:
    from megatron_setup.provider import finalize, set_fields

    provider = provider_of("qwen3")
    fields = fields_of(provider, words=["parallelism.tensor_model_parallel_size=3"])
    set_fields(provider, fields=fields)
    with pytest.raises(ConfigError, match="num_attention_heads"):
        finalize(provider, fields=fields)


@pytest.mark.parametrize("model", MODELS)
def test_overrides_give_a_provider_that_can_be_built_on(model: str) -> None:
    from megatron_setup.provider import finalize, set_fields

    provider = provider_of(model)
    fields = fields_of(provider)
    set_fields(provider, fields=fields)
    merged = merge_overrides(provider, overrides={"softmax_scale": 0.5})
    assert type(merged) is type(provider)
    assert provider.softmax_scale is None
    finalize(merged, fields=fields)
    changed = {name for name, value in vars(merged).items() if value != vars(provider).get(name)}
    assert changed >= {"softmax_scale"}


def test_every_key_of_the_provider_is_a_field_of_it() -> None:
    provider = provider_of("qwen3_moe")
    base = compose(["platform=hopper", "model=tiny_moe"]).config
    variants = [with_another_value(base, key=key) for key in keys_of()]
    fields = {name for config in variants for name in tables.provider_fields(config, has_experts=True)}
    assert {name for name in fields if not hasattr(provider, name)} == VISION_ONLY


def _upstream(fields: dict[str, Any]) -> dict[str, Any]:
    from megatron_setup.provider import upstream_value

    return {name: upstream_value(value) for name, value in fields.items()}


def test_every_key_of_the_optimizer_is_an_argument_of_it() -> None:
    from megatron.bridge.training.config import OptimizerConfig

    base = compose(["platform=hopper"]).config
    for config in _variants(base, group="optimizer"):
        made = OptimizerConfig(**_upstream(optimizer_fields(config)))
        assert made.optimizer in {kind.value for kind in OptimizerKind}


def test_every_key_of_the_reduction_is_an_argument_of_it() -> None:
    from megatron.core.distributed import DistributedDataParallelConfig

    base = compose(["precision=fp8", "precision.fp8_recipe=mxfp8", "precision.fp8_param=true"]).config
    for config in _variants(base, group="optimizer"):
        made = DistributedDataParallelConfig(**_upstream(ddp_fields(config)))
        assert made.fp8_param_gather
        assert made.reuse_grad_buf_for_mxfp8_param_ag


def _variants(base: RunConfig, *, group: str) -> list[RunConfig]:
    return [with_another_value(base, key=key) for key in keys_of() if key.startswith(f"{group}.")]


def test_default_optimizer_is_accepted_by_megatron_core() -> None:
    from megatron.core.optimizer import OptimizerConfig

    for words in ([], ["optimizer=sgd"], ["precision=fp16", "optimizer.hysteresis=3"]):
        OptimizerConfig(**_upstream(optimizer_fields(compose(words).config)))


def test_what_only_the_delayed_recipe_knows_follows_fp8() -> None:
    fp8 = compose(["platform=hopper", "precision=fp8"]).config
    assert optimizer_fields(fp8)["fp8_recipe"].value == "tensorwise"
    assert "fp8_recipe" not in optimizer_fields(compose([]).config)

"""Unsupported architectures, on the real providers that Megatron-Bridge makes of transformers' configurations."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from zero_kl.architectures import UNSUPPORTED, check_provider
from zero_kl.gates import megatron_features

pytestmark = pytest.mark.slow  # imports megatron

CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "glm4_moe_lite": "Glm4MoeLiteForCausalLM",
    "nemotron_h": "NemotronHForCausalLM",
    "falcon_h1": "FalconH1ForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "gemma4_text": "Gemma4ForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "step3p5": "Step3p5ForCausalLM",
    "qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration",
    "qwen3_vl": "Qwen3VLForConditionalGeneration",
    "gemma3": "Gemma3ForConditionalGeneration",
    "nemotron": "NemotronForCausalLM",
}
"""Model types that transformers 5.12.1 has a configuration for and megatron-bridge 0.6.2 converts."""

SUPPORTED = ("llama", "qwen2", "qwen3", "qwen3_moe")


Make = Callable[[str], Any]


def codes(provider: Any) -> list[str]:
    return [text.partition("]")[0].removeprefix("error[") for text in check_provider(provider).violations]


@pytest.fixture(scope="module")
def provider_of() -> Make:
    """A provider by model type, from transformers' default configuration of it."""
    from megatron_setup import cpu

    cpu.install()
    from megatron.bridge import AutoBridge
    from transformers import AutoConfig

    def make(model_type: str) -> Any:
        config = AutoConfig.for_model(model_type)
        config.architectures = [CLASSES[model_type]]
        return AutoBridge.from_hf_config(config).to_megatron_provider(load_weights=False)

    return make


@pytest.mark.parametrize("model_type", SUPPORTED)
def test_supported_models_pass(model_type: str, provider_of: Make) -> None:
    assert codes(provider_of(model_type)) == []


@pytest.mark.parametrize("model_type", sorted(set(CLASSES) - set(SUPPORTED)))
def test_the_provider_shows_what_the_model_type_promises(model_type: str, provider_of: Make) -> None:
    promised = {row.code for row in UNSUPPORTED if model_type in row.model_types}
    assert promised
    assert promised <= set(codes(provider_of(model_type)))


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("window_size", (4096, 0), "ZK083"),
        ("softmax_type", "learnable", "ZK084"),
        ("normalization", "LayerNorm", "ZK086"),
        ("mtp_num_layers", 1, "ZK087"),
        ("attention_dropout", 0.1, "ZK088"),
        ("hidden_dropout", 0.1, "ZK088"),
    ],
)
def test_a_field_that_an_override_set_is_seen(field: str, value: object, code: str, provider_of: Make) -> None:
    provider = provider_of("qwen3")
    assert field in {f.name for f in fields(provider)}
    setattr(provider, field, value)
    assert codes(provider) == [code]


def test_the_text_names_the_provider_and_the_reason(provider_of: Make) -> None:
    (text,) = check_provider(provider_of("deepseek_v2")).violations
    assert text.splitlines()[0] == (
        "error[ZK080]: MLAModelProvider has multi-latent attention, zero-KL needs a model without it"
    )
    assert "FlashMLA" in text


def test_what_the_installed_megatron_core_lacks(provider_of: Make) -> None:
    found = megatron_features()
    assert found.violations == ()
    assert [text.rpartition("[")[2] for text in found.warnings] == ["ZG042]", "ZG043]"]

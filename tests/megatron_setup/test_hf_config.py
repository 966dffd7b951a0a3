"""Nested Hugging Face configurations under Bridge's instantiate: without the guard, with it, and afterwards."""

import importlib
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("cpu_platform")

TALKER = "qwen3_omni_moe.Qwen3OmniMoeTalkerConfig"
FAILING = (TALKER, "qwen3_omni_moe.Qwen3OmniMoeConfig")
FINE = (
    "qwen3_omni_moe.Qwen3OmniMoeThinkerConfig",
    "qwen2_5_omni.Qwen2_5OmniConfig",
    "qwen2_5_vl.Qwen2_5_VLConfig",
    "qwen3_vl.Qwen3VLConfig",
    "gemma3.Gemma3Config",
)
"""Kin with nested configurations; of the 192 that transformers 5.12.1 has, only those of FAILING fail."""


def config_class(name: str) -> Any:
    package, _, attribute = name.partition(".")
    return getattr(importlib.import_module(f"transformers.models.{package}.configuration_{package}"), attribute)


def written(name: str) -> dict[str, Any]:
    """As megatron-core's container writes a configuration: with a `_target_` on every nested one."""
    from megatron.training.config.container import ConfigContainerBase

    return ConfigContainerBase._convert_value_to_dict(config_class(name)())


def read(section: dict[str, Any]) -> Any:
    from megatron.bridge.utils.instantiate_utils import instantiate

    return instantiate(section)


@pytest.mark.parametrize("name", FAILING)
def test_the_guard_is_needed_and_works(name: str) -> None:
    from megatron.bridge.utils.instantiate_utils import InstantiationException

    from launcher.patches import applied
    from megatron_setup.hf_config import guards_for

    section = written(name)
    with pytest.raises(InstantiationException, match="must be a mapping"):
        read(section)
    with applied(guards_for(section)):
        assert read(section).to_dict() == config_class(name)().to_dict()
    with pytest.raises(InstantiationException, match="must be a mapping"):
        read(section)


@pytest.mark.parametrize("name", FINE)
def test_others_need_none(name: str) -> None:
    from megatron_setup.hf_config import guards_for

    section = written(name)
    assert guards_for(section) == []
    assert read(section).to_dict() == config_class(name)().to_dict()


@pytest.mark.parametrize("given", [None, {"num_hidden_layers": 3}])
def test_mappings_and_absent_ones_are_built_as_before(given: dict[str, int] | None) -> None:
    from launcher.patches import applied
    from megatron_setup.hf_config import GUARDS

    plain = config_class(TALKER)(text_config=given)
    with applied(GUARDS):
        guarded = config_class(TALKER)(text_config=given)
    assert guarded.to_dict() == plain.to_dict()
    assert type(guarded.text_config) is type(plain.text_config)


def test_a_provider_with_a_talker_needs_the_guard() -> None:
    from megatron_setup.hf_config import GUARDS, guards_for

    assert guards_for({"model": {"layers": [{"talker_config": written(TALKER)}]}}) == list(GUARDS)
    assert guards_for({"_target_": "megatron.bridge.models.gpt_provider.GPTModelProvider"}) == []

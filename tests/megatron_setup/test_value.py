"""The value model's configuration: the policy's but for what the value model's keys say."""

from dataclasses import replace

import pytest

from launcher.compose import compose
from launcher.schema.model import ValueModelConfig
from megatron_setup.value import value_run_config

ON = "model.value.enabled=true"


def test_null_means_the_policys() -> None:
    policy = compose([ON, "optimizer.lr=0.25", "performance.micro_batch_size=3"]).config
    value = value_run_config(policy)
    assert value == replace(policy, model=replace(policy.model, name="tiny-value", value=ValueModelConfig()))
    assert value == value_run_config(policy)


def test_its_own_keys_win() -> None:
    words = [ON, "model.value.lr=0.5", "model.value.micro_batch_size=7", "model.value.hf_path=organisation/name"]
    words += ["+model.hf_config_overrides.rope_theta=5000", "model.init_seed=3"]
    value = value_run_config(compose(words).config)
    assert value.optimizer.lr == 0.5
    assert value.performance.micro_batch_size == 7
    assert value.model.hf_path == "organisation/name"
    assert (value.model.hf_config, value.model.hf_config_overrides, value.model.init_seed) == ({}, {}, 0)


def test_a_learning_rate_of_zero_is_one() -> None:
    assert value_run_config(compose([ON, "model.value.lr=0.0", "optimizer.lr=0.25"]).config).optimizer.lr == 0.0


def test_it_has_nothing_else_attached() -> None:
    words = [ON, "model.reference_model=true", "model.peft.enabled=true", "model.draft.enabled=true"]
    value = value_run_config(compose([*words, "mtp.mtp_num_layers=1"]).config)
    assert not (value.model.reference_model or value.model.peft.enabled or value.model.draft.enabled)
    assert not value.model.value.enabled
    assert value.mtp.mtp_num_layers is None


def test_without_a_value_model_there_is_no_configuration() -> None:
    with pytest.raises(AssertionError, match=r"model\.value\.enabled"):
        value_run_config(compose([]).config)

"""What Bridge's CheckpointConfig is given. Rules are tested in test_tables.py, saves with the job `train`."""

import pytest

from launcher.compose import compose
from megatron_setup.checkpoint import checkpoint_fields

WITHOUT_NULL = {"async_save": False, "ckpt_assume_constant_structure": False, "also_save_hf_checkpoint": False}
"""Knobs that are always handed on."""


def test_only_what_is_set_is_handed_on() -> None:
    assert checkpoint_fields(compose([]).config) == WITHOUT_NULL
    words = ["checkpoint.save=true", "checkpoint.save_interval=7", "checkpoint.load_optim=false"]
    assert checkpoint_fields(compose(words).config) == {**WITHOUT_NULL, "save_interval": 7, "load_optim": False}


@pytest.mark.usefixtures("cpu_platform")
def test_the_others_have_bridges_own_defaults() -> None:
    from megatron.bridge.training.config import CheckpointConfig

    bridge = CheckpointConfig()
    assert {name: getattr(bridge, name) for name in WITHOUT_NULL} == WITHOUT_NULL


def test_main_parameters_are_not_made_from_fp8_weights() -> None:
    fp8 = ["platform=hopper", "precision=fp8", "precision.fp8_param=true"]
    assert "load_main_params_from_ckpt" not in checkpoint_fields(compose(fp8).config)
    assert checkpoint_fields(compose([*fp8, "checkpoint.load_optim=false"]).config)["load_main_params_from_ckpt"]

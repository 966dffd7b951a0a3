"""Where a model comes from, and that names in the cache and of the run follow the content."""

import importlib.metadata
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from launcher.compose import compose
from launcher.errors import ConfigError
from launcher.hf_config import effective_hf_config
from launcher.identity import digest
from launcher.schema.model import CheckpointFormat
from launcher.validate import read_architecture
from megatron_setup.model_source import converted_folder, hf_folder_of, resolve_source

CHECKPOINTS = Path("tests/checkpoints")
WHOLE = f"model.pretrained_checkpoint.path={CHECKPOINTS / 'whole'}"
THETA = "++model.hf_config_overrides.rope_parameters.rope_theta=5000.0"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Hugging Face folder without weights."""
    shutil.copytree(CHECKPOINTS / "yarn", tmp_path / "hf")
    (tmp_path / "hf" / "model.safetensors").write_text("weights")
    return tmp_path / "hf"


def stored(folder: Path, *words: str) -> Any:
    return compose(["model=hf", f"model.hf_path={folder}", *words]).config


def test_a_root_is_resolved_to_its_newest() -> None:
    source = resolve_source(compose([WHOLE]).config)
    assert source.iteration == CHECKPOINTS / "whole" / "iter_0000002"
    assert source.format is CheckpointFormat.megatron_bridge
    assert source.chosen == "iter_0000002, by the highest number of 1"


def test_a_checkpoint_that_is_none_is_refused() -> None:
    config = compose([f"model.pretrained_checkpoint.path={CHECKPOINTS / 'yarn'}"]).config
    with pytest.raises(ConfigError, match=r"path is .*yarn, a Hugging Face folder .* is needed"):
        resolve_source(config)


def test_the_conversion_of_a_changed_checkpoint_has_another_name(folder: Path) -> None:
    before = converted_folder(stored(folder))
    assert converted_folder(stored(folder)) == before
    (folder / "model.safetensors").write_text("other weights")
    assert converted_folder(stored(folder)) != before


def test_the_conversion_of_another_bridge_has_another_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = converted_folder(stored(folder))
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "99")
    assert converted_folder(stored(folder)) != before


def test_overrides_are_in_the_names_whatever_their_order(folder: Path) -> None:
    one = stored(folder, "+model.hf_config_overrides={rope_theta:5000,rms_norm_eps:1e-5}")
    two = stored(folder, "+model.hf_config_overrides={rms_norm_eps:1e-5,rope_theta:5000}")
    other = stored(folder, "+model.hf_config_overrides={rms_norm_eps:1e-5,rope_theta:5001}")
    for place in (converted_folder, hf_folder_of):
        assert place(one) == place(two)
        assert len({place(one), place(other), place(stored(folder))}) == 3
    assert hf_folder_of(stored(folder)) == folder


def test_the_rules_see_the_overrides(folder: Path) -> None:
    overridden = stored(folder, "+model.hf_config_overrides.num_hidden_layers=8", THETA)
    architecture = read_architecture(overridden.model)
    assert architecture is not None
    assert architecture.num_layers == 8
    effective = effective_hf_config(overridden.model)
    assert effective is not None
    assert effective["rope_parameters"] == {
        **json.loads((folder / "config.json").read_text())["rope_parameters"],
        "rope_theta": 5000.0,
    }


def test_a_bridge_checkpoint_ignores_them(folder: Path) -> None:
    ignored = stored(folder, "+model.hf_config_overrides.num_hidden_layers=8", WHOLE)
    architecture = read_architecture(ignored.model)
    assert architecture is not None
    assert architecture.num_layers == 4
    assert hf_folder_of(ignored) == folder


def test_the_runs_name_follows_the_checkpoints_content(tmp_path: Path) -> None:
    shutil.copytree(CHECKPOINTS / "whole", tmp_path / "root")
    config = compose([f"model.pretrained_checkpoint.path={tmp_path / 'root'}"]).config
    before = digest(config)
    assert digest(config) == before
    (tmp_path / "root" / "iter_0000002" / "__0_0.distcp").write_text("weights")
    assert digest(config) != before

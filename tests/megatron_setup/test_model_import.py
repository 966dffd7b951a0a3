"""The conversion: once for all jobs, redone after a kill and on demand, with overrides and hooks passed on."""

import json
import multiprocessing
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.compose import compose
from launcher.errors import ConfigError
from launcher.schema import RunConfig
from tests.hf_configs import HF_CONFIGS
from tests.megatron_setup.sources import imported, loaded, make_hf_folder
from tests.worlds import run_world

pytestmark = pytest.mark.usefixtures("cpu_platform")

Words = list[str]


@pytest.fixture
def words(tmp_path: Path) -> Words:
    """A Hugging Face folder without weights: what converts it here does not look."""
    shutil.copytree("tests/checkpoints/yarn", tmp_path / "hf")
    return ["model=hf", f"model.hf_path={tmp_path / 'hf'}", f"output_dir={tmp_path / 'outputs'}"]


class Converter:
    """Writes a folder and counts."""

    def __init__(self) -> None:
        self.sources: list[Path] = []

    def __call__(self, source: Path, target: Path) -> None:
        assert not target.exists()
        target.mkdir(parents=True)
        (target / "weights").write_text(str(len(self.sources)))
        self.sources.append(source)


def run(words: Words, convert: Callable[[Path, Path], None]) -> Path:
    """Where the conversion lies afterwards."""
    from megatron_setup.model_import import import_once
    from megatron_setup.model_source import converted_folder

    config = compose(words).config
    import_once(config, convert=convert)
    return converted_folder(config)


def test_it_is_done_once(words: Words) -> None:
    convert = Converter()
    folder = run(words, convert)
    assert run(words, convert) == folder
    assert len(convert.sources) == 1


def test_it_is_done_again_on_demand_and_replaces_the_old_one(words: Words) -> None:
    convert = Converter()
    run(words, convert)
    folder = run([*words, "model.force_reconvert_from_hf=true"], convert)
    assert (folder / "weights").read_text() == "1"


def test_a_killed_one_is_redone(words: Words) -> None:
    """Both ways of dying: with a half-written sibling, and with a folder of before that has no marker."""
    folder = run(words, Converter())
    (folder / "complete.json").unlink()
    left_behind = folder.with_name(f"{folder.name}.partial")
    left_behind.mkdir()
    (left_behind / "half").touch()
    convert = Converter()
    assert run(words, convert) == folder
    assert len(convert.sources) == 1
    assert not left_behind.exists()
    assert not (folder / "half").exists()


def test_what_bridge_cannot_convert_is_named_and_leaves_nothing(words: Words, tmp_path: Path) -> None:
    def fail(source: Path, target: Path) -> None:
        target.mkdir(parents=True)
        raise ValueError("no bridge for this model")

    with pytest.raises(ConfigError, match=r"model.hf_path is .*/hf, Megatron-Bridge cannot convert it\n.*no bridge"):
        run(words, fail)
    assert not [path for path in (tmp_path / "outputs" / "cache" / "megatron").iterdir() if path.is_dir()]


def _slowly(words: Words, log: Path) -> None:
    def convert(source: Path, target: Path) -> None:
        target.mkdir(parents=True)
        with log.open("a") as file:
            file.write("converted\n")
        time.sleep(0.5)

    run(words, convert)


def test_two_jobs_at_once_make_one(words: Words, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    jobs = [context.Process(target=_slowly, args=(words, tmp_path / "log")) for _ in range(2)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join(30)
    assert [job.exitcode for job in jobs] == [0, 0]
    assert (tmp_path / "log").read_text() == "converted\n"


@pytest.mark.parametrize("format", ["megatron_bridge", "megatron_lm"])
def test_megatrons_own_formats_are_not_converted(format: str, words: Words) -> None:
    convert = Converter()
    pretrained = [
        "model.pretrained_checkpoint.path=tests/checkpoints/whole",
        f"model.pretrained_checkpoint.format={format}",
    ]
    run([*words, *pretrained], convert)
    assert convert.sources == []


def test_overrides_are_in_the_folder_that_is_converted(words: Words, tmp_path: Path) -> None:
    (tmp_path / "hf" / "tokenizer.json").write_text("tokens")
    convert = Converter()
    run([*words, "++model.hf_config_overrides.rope_parameters.rope_theta=5000.0"], convert)
    (source,) = convert.sources
    original, changed = (json.loads((folder / "config.json").read_text()) for folder in (tmp_path / "hf", source))
    assert changed == {**original, "rope_parameters": {**original["rope_parameters"], "rope_theta": 5000.0}}
    assert (source / "tokenizer.json").read_text() == "tokens"
    assert source.parent == tmp_path / "outputs" / "cache" / "hf"


def test_a_misspelt_override_is_refused(words: Words) -> None:
    with pytest.raises(ConfigError, match=r"rms_norm_epsilon is no key of a qwen3 .*\n.*nearest: rms_norm_eps"):
        run([*words, "+model.hf_config_overrides.rms_norm_epsilon=1e-5"], Converter())


@pytest.fixture(scope="module")
def real(cpu_platform: None, tmp_path_factory: pytest.TempPathFactory) -> Words:
    """A tiny model with weights."""
    root = tmp_path_factory.mktemp("real")
    run_world(make_hf_folder, num_ranks=1, folder=root / "hf", hf_config=HF_CONFIGS["llama"])
    return ["model=hf", f"model.hf_path={root / 'hf'}", f"output_dir={root / 'outputs'}"]


def _rotary_base(words: Words) -> float:
    return loaded(words)[0].config.rotary_base


def test_overrides_reach_the_model(real: Words) -> None:
    overridden = [*real, "++model.hf_config_overrides.rope_parameters.rope_theta=5000.0"]
    run_world(imported, num_ranks=1, joined=False, words=overridden)
    assert run_world(_rotary_base, num_ranks=1, words=overridden) == [5000.0]


def _converted_with_hooks(config: RunConfig, target: Path) -> Any:
    """The layer specs that were asked for, and the final norm as it was saved: the hook sets it to 7."""
    import torch
    from megatron.bridge.models.gpt_provider import default_layer_spec
    from megatron.core import dist_checkpointing

    from megatron_setup.convert import convert_with_bridge
    from megatron_setup.distributed import world_of_one
    from megatron_setup.model_source import hf_folder_of

    asked: list[str] = []

    def spec(provider: Any) -> Any:
        asked.append(type(provider).__name__)
        return default_layer_spec(provider)

    def hook(model: list[Any]) -> list[Any]:
        for name, param in model[0].named_parameters():
            if name.endswith("final_layernorm.weight"):
                torch.nn.init.constant_(param, 7.0)
        return model

    with world_of_one(config):
        convert_with_bridge(
            config,
            source=hf_folder_of(config),
            target=target,
            model_post_wrap_hook=hook,
            transformer_layer_spec=spec,
        )
    with world_of_one(config):
        tensors = dist_checkpointing.load_plain_tensors(str(target / "iter_0000000"))
    return asked, tensors["decoder.final_layernorm.weight"].unique().tolist()


def test_hook_and_spec_are_passed_on(real: Words, tmp_path: Path) -> None:
    arguments = {"config": compose(real).config, "target": tmp_path / "converted"}
    ((asked, norm),) = run_world(_converted_with_hooks, num_ranks=1, joined=False, **arguments)
    assert asked == ["GPTModelProvider"]
    assert norm == [7.0]

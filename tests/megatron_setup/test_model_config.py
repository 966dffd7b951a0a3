"""The provider of a checkpoint, and what an old, foreign or damaged run_config.yaml is refused with."""

import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.compose import compose
from launcher.errors import ConfigError
from megatron_setup.model_source import resolve_source
from tests.hf_configs import HF_CONFIGS
from tests.megatron_setup.sources import imported, make_hf_folder
from tests.worlds import run_world

pytestmark = pytest.mark.usefixtures("cpu_platform")

Words = list[str]
GPT_PROVIDER = "megatron.bridge.models.gpt_provider.GPTModelProvider"


@pytest.fixture(scope="module")
def words(cpu_platform: None, tmp_path_factory: pytest.TempPathFactory) -> Words:
    """The command line of a tiny model whose conversion is there."""
    root = tmp_path_factory.mktemp("model_config")
    words = ["model=hf", f"model.hf_path={root / 'hf'}", f"output_dir={root / 'outputs'}"]
    run_world(make_hf_folder, num_ranks=1, folder=root / "hf", hf_config=HF_CONFIGS["qwen3"])
    run_world(imported, num_ranks=1, joined=False, words=words)
    return words


def load(words: Words) -> Any:
    from megatron_setup.model_config import load_provider

    config = compose(words).config
    return load_provider(config, source=resolve_source(config))


def pretrained(words: Words, *, path: Path, format: str = "megatron_bridge") -> Words:
    return [*words, f"model.pretrained_checkpoint.path={path}", f"model.pretrained_checkpoint.format={format}"]


def copied(words: Words, *, folder: Path) -> Path:
    """A copy of the conversion's iteration, to break."""
    shutil.copytree(resolve_source(compose(words).config).iteration, folder)
    return folder


NOT_COMPARED = {"use_cpu_initialization", "init_method", "output_layer_init_method", "embedding_init_method"}
"""How weights are made before they are loaded: functions of their own, and a switch that Bridge sets at building."""


def test_megatron_lm_gives_the_same_model_as_a_conversion(words: Words, tmp_path: Path) -> None:
    """Every other field, once both are finalized."""
    folder = copied(words, folder=tmp_path / "iteration")
    (folder / "run_config.yaml").unlink()
    ours, converted = load(pretrained(words, path=folder, format="megatron_lm")), load(words)
    ours.finalize()
    converted.finalize()
    different = {f.name for f in fields(converted) if getattr(ours, f.name) != getattr(converted, f.name)}
    assert type(ours) is type(converted)
    assert different <= NOT_COMPARED


def _edit(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        data = yaml.safe_load(path.read_text())
        change(data)
        path.write_text(yaml.safe_dump(data))

    return edit


def _replaced(text: str) -> Callable[[Path], None]:
    def replace(path: Path) -> None:
        path.write_text(text)

    return replace


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (_edit(lambda c: c.pop("model")), "it has no `model`"),
        (_edit(lambda c: c.update(model=None)), "it has no `model`"),
        (_replaced("- 1\n"), "it has no `model`"),
        (_replaced("{{{:"), "while parsing"),
        (_replaced("model: !!python/object:os.system {}\n"), "could not determine a constructor"),
        (_edit(lambda c: c["model"].pop("_target_")), "`model` has no `_target_`"),
        (_edit(lambda c: c["model"].update(_target_="megatron.bridge.models.ghost.Ghost")), "models.ghost.Ghost"),
        (_edit(lambda c: c["model"].update(_target_="somebody.else.Provider")), "not in the allowlist"),
        (_edit(lambda c: c["model"].update(_target_="torch.nn.Linear")), "which is no model provider"),
        (
            _edit(lambda c: c["model"].update(num_layerz=2)),
            "`model.num_layerz` is 2, and the installed Megatron-Bridge's GPTModelProvider has no such field; "
            "nearest: num_layers,",
        ),
        (_edit(lambda c: c["model"]["activation_func"].update(_target_="torch.nn.functional.ghost")), "ghost"),
    ],
)
def test_what_cannot_be_used(damage: Callable[[Path], None], expected: str, words: Words, tmp_path: Path) -> None:
    folder = copied(words, folder=tmp_path / "iteration")
    damage(folder / "run_config.yaml")
    with pytest.raises(ConfigError) as caught:
        load(pretrained(words, path=folder))
    text = str(caught.value)
    assert text.startswith(f"error: {folder / 'run_config.yaml'} cannot be used\n  why:    ")
    assert expected in text
    assert text.endswith("hint: model.pretrained_checkpoint.format=megatron_lm")
    load(pretrained(words, path=folder, format="megatron_lm"))  # as the hint says


def test_a_field_of_an_older_bridge_that_asks_for_nothing_is_let_in(words: Words, tmp_path: Path) -> None:
    folder = copied(words, folder=tmp_path / "iteration")
    _edit(lambda c: c["model"].update(moe_of_long_ago=None))(folder / "run_config.yaml")
    assert load(pretrained(words, path=folder)).num_layers == 2


def test_bridges_own_migrations_run(words: Words, tmp_path: Path) -> None:
    """A layout in the form of an older version is dropped by Bridge's loader."""
    folder = copied(words, folder=tmp_path / "iteration")
    _edit(lambda c: c["model"].update(pipeline_model_parallel_layout={"old": "form"}))(folder / "run_config.yaml")
    assert load(pretrained(words, path=folder)).pipeline_model_parallel_layout is None


def test_the_checkpoint_of_another_model_is_refused(words: Words, tmp_path: Path) -> None:
    folder = copied(words, folder=tmp_path / "iteration")
    other = ["model=tiny", *pretrained(words[2:], path=folder)]
    with pytest.raises(ConfigError, match=r"has model.num_layers 2, the model of this run has 4"):
        load(other)

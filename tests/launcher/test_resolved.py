"""resolved.yaml: what is written is read back equal, and nothing else is accepted."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from launcher.compose import CONF, compose
from launcher.errors import ConfigError
from launcher.resolved import delta_from_defaults, dump_resolved, flatten, load_resolved
from launcher.schema import RunConfig

PRESETS = sorted(path.stem for path in (CONF / "preset").glob("*.yaml"))
ORDINARY = compose([]).config


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "resolved.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "words",
    [[], *([f"+preset={name}"] for name in PRESETS), ["model=/tmp", "performance.recompute_modules=[core_attn]"]],
    ids=" ".join,
)
def test_what_is_written_is_read_back_equal(words: list[str], tmp_path: Path) -> None:
    config = compose(words).config
    assert load_resolved(write(tmp_path, dump_resolved(config))) == config


LOOKALIKES = [
    "",
    "null",
    "None",
    "true",
    "1e-3",
    "1_000",
    "0x10",
    "~",
    "yes",
    "2026-01-01",
    "a: b",
    "- a",
    "'",
    "#",
    "é\n",
]


def test_a_text_that_looks_like_something_else_stays_a_text(tmp_path: Path) -> None:
    texts = {text: text for text in LOOKALIKES}
    config = replace(ORDINARY, model=replace(ORDINARY.model, hf_config=texts), job=replace(ORDINARY.job, name="1e-3"))
    assert load_resolved(write(tmp_path, dump_resolved(config))) == config


def test_the_order_is_the_schemas_and_enums_go_by_name() -> None:
    lines = dump_resolved(ORDINARY).splitlines()
    assert [line for line in lines if line[0] != " "][:2] == ["model:", "parallelism:"]
    assert "  kind: cpu" in lines


@pytest.mark.parametrize(
    ("old", "new", "fragments"),
    [
        ("num_steps:", "num_stepz:", ("job.num_stepz is not a key", "job.num_steps")),
        ("num_steps: 2", "num_steps: two", ("job.num_steps is refused", "two", "needs:  int")),
        ("kind: cpu", "kind: gpu", ("platform.kind is refused", "gpu", "needs:  one of cpu, hopper, blackwell")),
        ("  name: tiny\n", "", ("model.name is missing",)),
        ("platform:\n  kind: cpu\n", "", ("platform.kind is missing",)),
        ("job:", "jobs:", ("jobs is not a key",)),
        ("job:", "job: [", ("is not YAML",)),
    ],
)
def test_anything_else_is_refused(old: str, new: str, fragments: tuple[str, ...], tmp_path: Path) -> None:
    text = dump_resolved(ORDINARY)
    assert old in text
    path = write(tmp_path, text.replace(old, new, 1))
    with pytest.raises(ConfigError) as caught:
        load_resolved(path)
    for fragment in (str(path), *fragments):
        assert fragment in str(caught.value)


@pytest.mark.parametrize("content", ["", "just a text\n", "- a\n- list\n"])
def test_a_file_that_is_no_configuration_is_refused(content: str, tmp_path: Path) -> None:
    path = write(tmp_path, content)
    with pytest.raises(ConfigError, match=str(path)):
        load_resolved(path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.yaml cannot be read"):
        load_resolved(tmp_path / "absent.yaml")


def test_flat_values_are_plain() -> None:
    flat = flatten(compose(["model.peft.target_modules=[a]", "performance.recompute_modules=[mlp]"]).config)
    assert flat["platform.kind"] == "cpu"
    assert flat["model.hf_config"]["model_type"] == "qwen3"
    assert flat["performance.recompute_modules"] == ["mlp"]
    assert flat["force"] is False
    assert all(isinstance(value, bool | int | float | str | list | dict | None) for value in flat.values())


def test_the_delta_is_what_differs_and_what_has_no_default() -> None:
    delta = delta_from_defaults(compose(["job.num_steps=2", "job.seed=7", "parallelism=tp2"]).config)
    assert delta["job.seed"] == 7
    assert delta["parallelism.tensor_model_parallel_size"] == 2
    assert delta["platform.kind"] == "cpu"
    assert "job.num_steps" not in delta
    assert "parallelism.pipeline_model_parallel_size" not in delta


def test_two_free_mappings_never_have_the_same_delta() -> None:
    one = delta_from_defaults(compose(["+model.hf_config_overrides={a:1}"]).config)
    two = delta_from_defaults(compose(["+model.hf_config_overrides={a:1,b:2}"]).config)
    assert one["model.hf_config_overrides"] == {"a": 1}
    assert one != two


def test_reading_imports_no_hydra_and_no_torch(tmp_path: Path) -> None:
    path = write(tmp_path, dump_resolved(ORDINARY))
    code = (
        "import sys; from pathlib import Path; from launcher.resolved import load_resolved;"
        f"load_resolved(Path({str(path)!r})); print({{'hydra', 'torch'}} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=CONF.parent)
    assert done.stdout.strip() == "set()"


def test_the_type_is_run_config(tmp_path: Path) -> None:
    assert type(load_resolved(write(tmp_path, dump_resolved(ORDINARY)))) is RunConfig


def test_the_yaml_is_omegaconfs() -> None:
    texts = "+model.hf_config.x={a:1e-4,b:null,c:'1e-4',d:'true',e:'a: b',f:''}"
    config = compose(["+preset=zero_kl", texts, "job.prompts='é #'"]).config
    assert dump_resolved(config) == OmegaConf.to_yaml(OmegaConf.structured(config))

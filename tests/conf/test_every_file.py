"""Every file in conf/ composes, an option holds only what differs from the schema, a preset only what it changes."""

from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import reduce
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import yaml

from launcher.compose import compose
from launcher.keys import free_key_of, keys_of
from launcher.resolved import flatten
from launcher.schema import RunConfig
from launcher.validate import validate

CONF = Path(__file__).resolve().parents[2] / "conf"
GROUPS = [name for name, hint in get_type_hints(RunConfig).items() if is_dataclass(hint)]
OPTIONS = [path for group in GROUPS for path in sorted((CONF / group).glob("*.yaml"))]
PRESETS = sorted((CONF / "preset").glob("*.yaml"))
MAX_PRESET_LINES = 40
LEFT_OPEN = "???"
NEEDS = {
    "parallelism=ep2": ["model=tiny_moe"],
    "precision=fp8": ["platform=hopper", "performance.make_sequence_length_divisible_by=16"],
    "optimizer=adam_cpu_offload": ["platform=hopper"],
    "generation=gpu": ["model.seq_length=512"],
    "generation=graphs": ["model.seq_length=512", "platform=hopper", "performance.use_te_rng_tracker=true"],
    "zero_kl=te_native": ["+preset=zero_kl"],
    "zero_kl=megatron": ["+preset=zero_kl"],
}
"""What an option needs beside it for the rules to hold; the others need nothing."""


def _name(path: Path) -> str:
    return f"{path.parent.name}={path.stem}"


def load(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text()) or {}


def leaves(tree: Any, *, prefix: str) -> Iterator[tuple[str, Any]]:
    """Dotted key and value of everything in a file but its defaults list."""
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, prefix=f"{prefix}{name}.")
        elif name != "defaults":
            yield f"{prefix}{name}", value


def written(path: Path) -> dict[str, Any]:
    """The values a file sets, by the keys of the whole configuration."""
    return dict(leaves(load(path), prefix="" if path in PRESETS else f"{path.parent.name}."))


def value_of(config: RunConfig, key: str) -> Any:
    """A leaf of the configuration, or an entry of one of its free mappings."""
    flat = flatten(config)
    if key in flat:
        return flat[key]
    mapping = free_key_of(key)
    assert mapping is not None, f"{key} is not a key"
    return reduce(dict.__getitem__, key.removeprefix(f"{mapping.name}.").split("."), flat[mapping.name])


def test_every_group_has_a_folder_and_one_option_by_default() -> None:
    chosen = [entry for entry in load(CONF / "config.yaml")["defaults"] if isinstance(entry, dict)]
    assert [group for entry in chosen for group in entry] == GROUPS
    assert {path.name for path in CONF.iterdir()} == {*GROUPS, "preset", "config.yaml"}


def test_the_default_is_an_ordinary_cpu_experiment() -> None:
    expected = {
        "model.name": "tiny",
        "precision.dtype": "bfloat16",
        "zero_kl.backend": "none",
        "zero_kl.required": False,
        "platform.kind": "cpu",
        "cluster.kind": "local",
        "job.kind": "mismatch",
    }
    assert flatten(compose([]).config).items() >= expected.items()


@pytest.mark.parametrize("path", OPTIONS, ids=_name)
def test_option_composes_validates_and_its_values_arrive(path: Path) -> None:
    values = {key: "filled" if value == LEFT_OPEN else value for key, value in written(path).items()}
    to_fill = [f"{key}=filled" for key, value in values.items() if value == "filled"]
    config = compose([_name(path), *to_fill, *NEEDS.get(_name(path), [])]).config
    assert {key: value_of(config, key) for key in values} == values
    assert [violation.row.code for violation in validate(config).violations] == []


@pytest.mark.parametrize("path", OPTIONS, ids=_name)
def test_option_holds_only_differences(path: Path) -> None:
    keys = keys_of()
    same = [k for k, v in written(path).items() if k in keys and not keys[k].required and keys[k].default == v]
    assert same == []


@pytest.mark.parametrize("path", PRESETS, ids=_name)
def test_preset_is_a_short_diff_that_opens_with_its_command(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert lines[:2] == ["# @package _global_", f"# python -m launcher +preset={path.stem}"]
    assert len(lines) < MAX_PRESET_LINES


def choices_of(path: Path) -> list[str]:
    """The words that say what the preset's defaults list says: the preset it extends, the options it overrides."""
    entries = load(path)["defaults"]
    extended = [f"+preset={entry}" for entry in entries if isinstance(entry, str)]
    return extended + [
        f"{k.removeprefix('override /')}={v}" for e in entries if isinstance(e, dict) for k, v in e.items()
    ]


@pytest.mark.parametrize("path", PRESETS, ids=_name)
def test_preset_repeats_nothing(path: Path) -> None:
    """Neither an option nor a value of a preset is what would hold without it."""
    choices = choices_of(path)
    before = compose(choices).config
    idle = [word for word in choices if compose([w for w in choices if w != word]).config == before]
    assert idle == []
    after, values = compose([f"+preset={path.stem}"]).config, written(path)
    assert {key: value_of(after, key) for key in values} == values
    assert [key for key in values if value_of(before, key) == values[key]] == []


@pytest.mark.parametrize("words", [[], *([f"+preset={path.stem}"] for path in PRESETS)], ids=" ".join)
def test_default_and_presets_validate(words: list[str]) -> None:
    validate(compose(words).config).raise_if_invalid()


@pytest.mark.parametrize("path", PRESETS, ids=_name)
def test_command_line_wins_over_the_preset(path: Path) -> None:
    typed = {"zero_kl.required": False, "platform.kind": "cpu", "zero_kl.backend": "none"}
    config = compose([f"+preset={path.stem}", "zero_kl=off", "zero_kl.required=false", "platform=cpu"]).config
    assert flatten(config).items() >= typed.items()

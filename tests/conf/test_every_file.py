"""Every file in conf/ composes, holds only what differs from the schema, and a preset only what it changes."""

from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import yaml

from launcher.compose import compose
from launcher.schema import RunConfig

CONF = Path(__file__).resolve().parents[2] / "conf"
GROUPS = {name: hint for name, hint in get_type_hints(RunConfig).items() if is_dataclass(hint)}
OPTIONS = sorted(path for group in GROUPS for path in (CONF / group).glob("*.yaml"))
PRESETS = sorted((CONF / "preset").glob("*.yaml"))
MAX_PRESET_LINES = 40


def _name(path: Path) -> str:
    return f"{path.parent.name}={path.stem}"


def load(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text())


def leaves(tree: Any, *prefix: str) -> dict[tuple[str, ...], Any]:
    """Path to value, for every value of a file but its defaults list."""
    if not isinstance(tree, dict):
        return {prefix: tree}
    return {p: v for k, sub in tree.items() if k != "defaults" for p, v in leaves(sub, *prefix, k).items()}


def plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def value_at(node: Any, path: tuple[str, ...]) -> Any:
    """The value in a configuration; below a mapping the path goes on by key."""
    for part in path:
        node = node[part] if isinstance(node, dict) else getattr(node, part)
    return plain(node)


def to_fill(path: Path) -> list[str]:
    """Overrides for the values an option leaves to the person."""
    return [f"{path.parent.name}.{'.'.join(p)}=filled" for p, v in leaves(load(path)).items() if v == "???"]


def default_at(cls: Any, path: tuple[str, ...]) -> Any:
    """The dataclass's own default; MISSING where it has none."""
    (field,) = [f for f in fields(cls) if f.name == path[0]]
    if len(path) > 1 and is_dataclass(hint := get_type_hints(cls)[path[0]]):
        return default_at(hint, path[1:])
    return plain(field.default)


def test_every_group_has_a_folder_and_one_option_by_default() -> None:
    chosen = [entry for entry in load(CONF / "config.yaml")["defaults"] if isinstance(entry, dict)]
    assert [group for entry in chosen for group in entry] == list(GROUPS)
    assert {path.name for path in CONF.iterdir()} == {*GROUPS, "preset", "config.yaml"}


def test_the_default_is_an_ordinary_cpu_experiment() -> None:
    config = compose([]).config
    kinds = [config.platform.kind, config.cluster.kind, config.job.kind, config.precision.dtype, config.zero_kl.backend]
    assert [plain(kind) for kind in kinds] == ["cpu", "local", "mismatch", "bfloat16", "none"]
    assert (config.model.name, config.zero_kl.required) == ("tiny", False)


@pytest.mark.parametrize("path", OPTIONS, ids=_name)
def test_option_composes_and_its_values_arrive(path: Path) -> None:
    config = compose([_name(path), *to_fill(path)]).config
    group = getattr(config, path.parent.name)
    written = {p: v for p, v in leaves(load(path)).items() if v != "???"}
    assert {p: value_at(group, p) for p in written} == written


@pytest.mark.parametrize("path", OPTIONS, ids=_name)
def test_option_holds_only_differences(path: Path) -> None:
    (parent,) = load(path)["defaults"]
    assert parent == "schema" or (path.parent / f"{parent}.yaml").exists()
    same = [p for p, v in leaves(load(path)).items() if default_at(GROUPS[path.parent.name], p) == v]
    assert same == []


@pytest.mark.parametrize("path", PRESETS, ids=_name)
def test_preset_is_a_short_diff_that_opens_with_its_command(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert lines[:2] == ["# @package _global_", f"# python -m launcher +preset={path.stem}"]
    assert len(lines) < MAX_PRESET_LINES


def overrides_of(path: Path) -> list[str]:
    """The command line that says what the preset's defaults list says."""
    entries = load(path)["defaults"]
    parents = [f"+preset={entry}" for entry in entries if isinstance(entry, str)]
    choices = [f"{key.removeprefix('override /')}={v}" for e in entries if isinstance(e, dict) for key, v in e.items()]
    return parents + choices


@pytest.mark.parametrize("path", PRESETS, ids=_name)
def test_preset_repeats_nothing(path: Path) -> None:
    """Neither an option nor a value of a preset is what would hold without it."""
    overrides = overrides_of(path)
    for override in overrides:
        without = [o for o in overrides if o != override]
        assert compose(without).config != compose(overrides).config, override
    before, after = compose(overrides).config, compose([f"+preset={path.stem}"]).config
    body = leaves(load(path))
    assert {p: value_at(after, p) for p in body} == body
    assert [p for p in body if value_at(before, p) == value_at(after, p)] == []


@pytest.mark.parametrize("path", PRESETS, ids=_name)
def test_command_line_wins_over_the_preset(path: Path) -> None:
    config = compose([f"+preset={path.stem}", "zero_kl=off", "zero_kl.required=false", "platform=cpu"]).config
    assert (plain(config.zero_kl.backend), config.zero_kl.required, plain(config.platform.kind)) == ("none", False, "cpu")


def test_a_default_is_read_from_the_dataclass() -> None:
    assert default_at(GROUPS["parallelism"], ("tensor_model_parallel_size",)) == 1
    assert default_at(GROUPS["model"], ("peft", "dim")) == 32
    assert default_at(GROUPS["platform"], ("kind",)) is MISSING

"""From the words of the command line to a frozen RunConfig: Hydra composes the groups, OmegaConf checks each value.

Owns Hydra: the schema in its store, the folder of its files, its plugins. Only launcher.overrides imports it besides.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from launcher.diagnose import (
    Problem,
    broken_conf,
    entry_exists,
    missing_value,
    none_text,
    refusal,
    refused_value,
    unresolved,
)
from launcher.errors import ConfigError
from launcher.keys import free_key_of, is_section, keys_of, plain
from launcher.overrides import Options, holds_none_text, is_choice, read_overrides
from launcher.resolved import flatten, schema_node
from launcher.schema import RunConfig

_BESIDE, _INSIDE = (folder / "conf" for folder in (Path(__file__).parent.parent, Path(__file__).parent))

CONF = _BESIDE if _BESIDE.is_dir() else _INSIDE
"""The folder of the YAML files: beside the package in a checkout, inside it in an installed wheel."""

PRIMARY = "config"
"""The file in conf/ whose defaults name an option of every group."""


@dataclass(frozen=True, kw_only=True)
class Composed:
    """`overrides` are the words as typed; `choices` is the option taken of every group, and of preset where one is."""

    config: RunConfig
    overrides: tuple[str, ...]
    choices: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A YAML file of conf/ that was merged under the dotted `package`; "" is the whole configuration."""

    file: Path
    package: str


@dataclass(frozen=True, kw_only=True)
class _Base:
    """Every option is chosen and no value is overridden yet."""

    node: DictConfig
    choices: dict[str, str]
    parts: Mapping[str, Any]
    """The groups (and the keys outside of groups) as they stand in RunConfig, where no override touches them."""

    changed: dict[tuple[str, tuple[str, ...]], Any] = field(default_factory=dict[Any, Any])
    """Parts as overrides left them. Points of a sweep share most of these, and making them takes most of the time."""

    def known_parts(self, by_part: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
        """The parts that the same words made before. None of them where `_copy_to_change` copies the whole node."""
        if not self.parts or any("${" in word for words in by_part.values() for word in words):
            return {}
        known = {part: self.changed[part, words] for part, words in by_part.items() if (part, words) in self.changed}
        return known if all(part in known or is_section(part) for part in by_part) else {}

    def remember(self, config: RunConfig, *, by_part: Mapping[str, tuple[str, ...]]) -> None:
        """Keep the parts of a configuration that composed, under the words that made them."""
        self.changed.update({(part, words): getattr(config, part) for part, words in by_part.items()})


def compose(overrides: Sequence[str], *, conf: Path = CONF) -> Composed:
    """The configuration that the words ask for; everything that is wrong with them in one ConfigError.

    `model=FOLDER` and `model=ORGANISATION/NAME` (a value with a slash, or an existing folder, that is no option) mean
    `model=hf model.hf_path=... model.name=...`: a folder by its absolute path, called by its last part.
    """
    options = group_options(conf)
    words, problems = read_overrides(overrides, options=options)
    choices = [word for word in words if is_choice(word, options=options)]
    try:
        base = _compose_base(_as_hydra(choices), conf=conf)
    except ConfigError as error:
        raise ConfigError("\n\n".join([*(problem.render() for problem in problems), str(error)])) from None
    values = [word for word in words if word not in choices]
    by_part = _by_part(values)
    known = base.known_parts(by_part)
    values = [word for word in values if _part_of(word) not in known]
    node = _copy_to_change(base, words=values, known=known)
    problems += [problem for word in values if (problem := _apply(word, node=node))]
    hinted = {problem.hint.partition("=")[0] for problem in problems if problem.hint}
    problems += [p for p in _unfinished(node, choices=base.choices) if p.hint.partition("=")[0] not in hinted]
    if problems:
        raise refusal(problems)
    config = _resolve(node, parts={**base.parts, **known})
    base.remember(config, by_part=by_part)
    return Composed(config=config, overrides=tuple(overrides), choices=base.choices)


@cache
def group_options(conf: Path = CONF) -> Options:
    """The options of every group, sorted; `preset` is one of the groups."""
    found: dict[str, list[str]] = {}
    for file in sorted(conf.glob("*/*.yaml")):
        found.setdefault(file.parent.name, []).append(file.stem)
    return found


def layers(overrides: Sequence[str], *, conf: Path = CONF) -> list[Layer]:
    """The YAML files behind a composition that succeeded, in the order in which they were merged."""
    options = group_options(conf)
    words, _ = read_overrides(overrides, options=options)
    choices = _as_hydra([word for word in words if is_choice(word, options=options)])
    with _hydra(conf):
        loader = GlobalHydra.instance().config_loader()
        defaults = loader.compute_defaults_list(PRIMARY, list(choices), RunMode.RUN).defaults
    found = [Layer(file=conf / f"{d.config_path}.yaml", package=_package(d.package)) for d in defaults]
    return [layer for layer in found if layer.file.is_file()]


def _package(package: str | None) -> str:
    return (package or "").removeprefix("_global_").removeprefix(".")


def _as_hydra(choices: Sequence[Override]) -> tuple[str, ...]:
    return tuple(f"{choice.get_key_element()}={choice.value()}" for choice in choices)


@lru_cache(maxsize=256)
def _compose_base(choices: tuple[str, ...], *, conf: Path) -> _Base:
    """What Hydra composes of the chosen options. Kept, since the points of a sweep mostly differ in values."""
    try:
        with _hydra(conf):
            node = hydra.compose(PRIMARY, list(choices), return_hydra_config=True)
    # ValueError is what Hydra raises for a malformed defaults list or header.
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
        raise refusal([broken_conf(error)]) from None
    chosen: dict[str, Any] = dict(node.hydra.runtime.choices)
    with open_dict(node):
        del node["hydra"]
    ours = {group: chosen[group] for group in group_options(conf) if group in chosen}
    for group, option in ours.items():
        _require_what_option_requires(conf / group / f"{option}.yaml", node=node)
    return _Base(node=node, choices=ours, parts=_finished_parts(node))


def _require_what_option_requires(file: Path, *, node: DictConfig) -> None:
    """Put an option's ??? back where only the schema's default stands: a merge never replaces a value by ???."""
    if "???" not in file.read_text():
        return
    prefix = "" if file.parent.name == "preset" else f"{file.parent.name}."
    for name in OmegaConf.missing_keys(OmegaConf.load(file)):
        key = keys_of().get(prefix + name)
        if key is not None and plain(OmegaConf.select(node, key.name)) == key.default:
            OmegaConf.update(node, key.name, "???")


@contextmanager
def _hydra(conf: Path) -> Generator[None]:
    """Hydra with our schema and files, and no trace of it in the process afterwards."""
    _load_plugins()
    _store_schema()
    with hydra.initialize_config_dir(str(conf), job_name="launcher", version_base="1.3"):
        yield


@cache
def _load_plugins() -> None:
    """Let Hydra load its own plugins (the readers of files) and no other package's.

    Its scan imports every installed hydra_plugins package; that of multi-storage-client, which megatron-core brings,
    takes longer than all the rest of a composition. None in sys.modules is Python's way to say that a package cannot be
    imported, which Hydra takes as "no plugins are installed".
    """
    modules = cast(dict[str, ModuleType | None], sys.modules)
    before = {name: module for name, module in modules.items() if name == "hydra_plugins"}
    modules["hydra_plugins"] = None
    try:
        Plugins.instance()
    finally:
        del modules["hydra_plugins"]
        modules.update(before)


@cache
def _store_schema() -> None:
    """Put RunConfig into Hydra's store as `schema`, the first of conf/config.yaml's defaults."""
    ConfigStore.instance().store(name="schema", node=schema_node())


def _finished_parts(node: DictConfig) -> dict[str, Any]:
    """The parts without a ???. None of them where a value refers to another one, which may still change."""
    if "${" in str(OmegaConf.to_container(node)):
        return {}
    unfinished = {name.partition(".")[0] for name in OmegaConf.missing_keys(node)}
    return _as_parts(node, names=[name for name in node if name not in unfinished])


def _part_of(word: Override) -> str:
    return word.key_or_group.partition(".")[0]


def _by_part(words: Sequence[Override]) -> dict[str, tuple[str, ...]]:
    """The words by the part that they change. By key and value: one word may stand for several, as model=FOLDER."""
    found: dict[str, tuple[str, ...]] = {}
    for word in words:
        text = f"{word.get_key_element()}={word.value()!r}"
        found[_part_of(word)] = (*found.get(_part_of(word), ()), text)
    return found


def _copy_to_change(base: _Base, *, words: Sequence[Override], known: Iterable[str]) -> DictConfig:
    """A copy of the parts that the words change or that are not finished; the others need not be converted again.

    All are copied where a value refers to another one, and for a key outside of the groups, whose type is the whole's.
    """
    changed = {_part_of(word) for word in words}
    if any("${" in str(word.input_line) for word in words) or not all(is_section(name) for name in changed):
        return copy.deepcopy(base.node)
    finished = {*base.parts, *known}
    node = OmegaConf.masked_copy(base.node, [str(n) for n in base.node if n in changed or n not in finished])
    OmegaConf.set_struct(node, True)
    return node


def _apply(word: Override, *, node: DictConfig) -> Problem | None:
    """Change one value of the node as Hydra does it; the problem where its type or a free mapping refuses."""
    name, value = word.key_or_group, word.value()
    mapping = free_key_of(name)
    there = OmegaConf.select(node, name, throw_on_missing=False) is not None
    if mapping and there and word.is_add() and not isinstance(value, dict | list):
        return entry_exists(name, word=str(word.input_line))
    try:
        if word.is_delete():
            _delete_entry(name, node=node)
        else:
            OmegaConf.update(node, name, value, merge=True, force_add=word.is_add() or word.is_force_add())
    except OmegaConfBaseException as error:
        entries = list(OmegaConf.select(node, mapping.name)) if mapping else []
        return refused_value(error, word=str(word.input_line), entries=entries)
    return None


def _delete_entry(name: str, *, node: DictConfig) -> None:
    """Remove an entry of a free mapping; raises OmegaConf's ConfigKeyError where there is none."""
    parent, _, entry = name.rpartition(".")
    with open_dict(node):
        del OmegaConf.select(node, parent)[entry]


def _unfinished(node: DictConfig, *, choices: Mapping[str, str]) -> list[Problem]:
    """What is still ???, and the first interpolation that leads nowhere."""
    try:
        names = sorted(OmegaConf.missing_keys(node))
    except OmegaConfBaseException as error:
        return [unresolved(error)]
    files = {group: f"conf/{group}/{option}.yaml" for group, option in choices.items()}
    return [missing_value(name, file=files[g] if (g := name.partition(".")[0]) in files else "") for name in names]


def _resolve(node: DictConfig, *, parts: Mapping[str, Any]) -> RunConfig:
    """The dataclasses; refuses values of a wrong type behind an interpolation, and the text None out of a file."""
    try:
        config = RunConfig(**{**parts, **_as_parts(node, names=node)})
    except OmegaConfBaseException as error:
        raise refusal([unresolved(error)]) from None
    problems = [none_text(n, hint=f"{n}=null") for n, value in flatten(config).items() if holds_none_text(value)]
    if problems:
        raise refusal(problems)
    return config


def _as_parts(node: DictConfig, *, names: Iterable[Any]) -> dict[str, Any]:
    """The parts of RunConfig: groups as dataclasses, other keys by their values."""
    parts = {str(name): node[name] for name in names}
    return {name: OmegaConf.to_object(part) if OmegaConf.is_dict(part) else part for name, part in parts.items()}

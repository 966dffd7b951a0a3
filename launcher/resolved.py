"""A RunConfig as YAML and as flat keys: what the worker reads, what the run's identity counts, what the report shows.

Owns the typed OmegaConf nodes of the schema too, since reading and composing need the same ones. No Hydra.
"""

from __future__ import annotations

import typing
from dataclasses import fields, is_dataclass
from functools import cache, reduce
from pathlib import Path
from typing import Any, cast

import yaml
from omegaconf import DictConfig, OmegaConf, flag_override
from omegaconf._utils import OmegaConfDumper
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from launcher.diagnose import in_file, refusal
from launcher.errors import ConfigError
from launcher.keys import keys_of, plain
from launcher.schema import RunConfig


@cache
def schema_node() -> DictConfig:
    """RunConfig as a typed node that accepts merges and refuses keys it does not declare. Shared: merge into a copy.

    OmegaConf makes the node of a frozen dataclass read-only, and that refuses every merge (ours and Hydra's). A
    required group would be missing, and a merge into one that is missing makes a read-only node again: so all are set.
    """
    node = OmegaConf.structured(RunConfig)
    OmegaConf.set_readonly(node, None)
    with flag_override(node, "no_deepcopy_set_nodes", True):
        for name, hint in typing.get_type_hints(RunConfig).items():
            if is_dataclass(hint):
                node[name] = OmegaConf.structured(hint)
                _make_writable(node[name])
    return node


def _make_writable(node: DictConfig) -> None:
    OmegaConf.set_readonly(node, None)
    for name in node:
        if not OmegaConf.is_missing(node, name) and OmegaConf.is_dict(node[name]):
            _make_writable(node[name])


def to_config(node: DictConfig) -> RunConfig:
    """The frozen dataclasses of a node whose interpolations resolve and in which nothing is missing."""
    config = OmegaConf.to_object(node)
    assert isinstance(config, RunConfig), f"not a node of RunConfig: {type(config)}"
    return config


def dump_resolved(config: RunConfig) -> str:
    """YAML with every key, in the order of the schema; enums by name. `load_resolved` gives back an equal RunConfig."""
    return yaml.dump(_tree(config), default_flow_style=False, allow_unicode=True, sort_keys=False, Dumper=_Dumper)


class _Dumper(yaml.CDumper):
    """OmegaConf's own text, which quotes what it would read as another type, a tenth of its time: OmegaConf.to_yaml
    makes typed nodes first and writes them in Python, and that would be most of submitting a sweep."""


def _text_node(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return OmegaConfDumper.str_representer(cast(yaml.Dumper, dumper), text)


_Dumper.add_representer(str, _text_node)


def _tree(part: Any) -> Any:
    """Dataclasses as mappings."""
    if not is_dataclass(part):
        return plain(part)
    return {field.name: _tree(getattr(part, field.name)) for field in fields(part)}


def load_resolved(path: Path) -> RunConfig:
    """Read what `dump_resolved` wrote. Raises ConfigError naming file and key: unknown, missing, or of a wrong type."""
    try:
        loaded = OmegaConf.load(path)
        return to_config(cast(DictConfig, OmegaConf.merge(schema_node(), loaded)))
    except OSError as error:
        raise ConfigError(f"error: {path} cannot be read: {error.strerror}") from None
    except YAMLError as error:
        raise ConfigError(f"error: {path} is not YAML: {error}") from None
    except OmegaConfBaseException as error:
        raise refusal([in_file(str(path), error=error)]) from None


def flatten(config: RunConfig) -> dict[str, Any]:
    """Every leaf by dotted key, as a plain value: enums by name, a free mapping whole."""
    return {name: plain(reduce(getattr, name.split("."), config)) for name in keys_of()}


def delta_from_defaults(config: RunConfig) -> dict[str, Any]:
    """The leaves that differ from the schema's defaults; those without a default are always among them."""
    keys = keys_of()
    return {
        name: value for name, value in flatten(config).items() if keys[name].required or value != keys[name].default
    }

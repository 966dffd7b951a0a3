"""Every field of the configuration can be set from the command line, with a value of its type and, where it may be
null, with null."""

from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import reduce
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

from launcher.compose import compose
from launcher.schema import RunConfig


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """A field that holds a value: its dotted key, its type without null, whether null is allowed, its default."""

    key: str
    kind: Any
    nullable: bool
    default: Any


def leaves(cls: Any, prefix: str = "") -> Iterator[Leaf]:
    """Every field below the dataclass that is no dataclass itself."""
    hints = get_type_hints(cls)
    for field in fields(cls):
        hint = hints[field.name]
        if is_dataclass(hint):
            yield from leaves(hint, f"{prefix}{field.name}.")
            continue
        nullable = get_origin(hint) in (Union, UnionType)
        kind = next(a for a in get_args(hint) if a is not type(None)) if nullable else hint
        default = field.default if field.default is not MISSING else None
        yield Leaf(key=prefix + field.name, kind=kind, nullable=nullable, default=default)


def another(kind: Any, *, default: Any) -> Any:
    """A value of the type that is not the default."""
    if get_origin(kind) is list:
        (element,) = get_args(kind)
        return list(element)[:2] if issubclass(element, Enum) else [another(element, default=None)]
    if issubclass(kind, Enum):
        return next((member for member in kind if member is not default), default)
    return {bool: not default, int: 7, float: 0.75, str: "text"}[kind]


def typed(value: Any) -> str:
    """The value as a person types it."""
    if isinstance(value, list):
        return f"[{','.join(typed(v) for v in value)}]"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value.value) if isinstance(value, Enum) else str(value)


def value_at(config: RunConfig, key: str) -> Any:
    return reduce(getattr, key.split("."), config)


LEAVES = list(leaves(RunConfig))
GROUPS = [field.name for field in fields(RunConfig)]


@pytest.mark.parametrize("group", GROUPS)
def test_every_field_takes_a_value_of_its_type(group: str) -> None:
    values = {
        leaf.key: another(leaf.kind, default=leaf.default)
        for leaf in LEAVES
        if leaf.key.split(".")[0] == group and get_origin(leaf.kind) is not dict
    }
    config = compose([f"{key}={typed(value)}" for key, value in values.items()]).config
    assert {key: value_at(config, key) for key in values} == values
    assert all(type(value_at(config, key)) is type(value) for key, value in values.items())


def test_every_nullable_field_takes_null() -> None:
    keys = [leaf.key for leaf in LEAVES if leaf.nullable]
    config = compose([f"{key}=null" for key in keys]).config
    assert {key for key in keys if value_at(config, key) is not None} == set()


def test_every_mapping_takes_new_keys() -> None:
    keys = [leaf.key for leaf in LEAVES if get_origin(leaf.kind) is dict]
    config = compose([f"+{key}.new_key=[1,2]" for key in keys]).config
    assert [value_at(config, key)["new_key"] for key in keys] == [[1, 2]] * len(keys)


def test_the_schema_is_counted() -> None:
    """A typo in `leaves` would make the tests above pass on nothing."""
    assert len(LEAVES) > 250
    assert len(GROUPS) == len(set(GROUPS)) >= 13

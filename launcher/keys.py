"""The dotted keys of the schema: every leaf of RunConfig with its type and default.

Owns reading the dataclasses. A leaf is a field that is not a dataclass itself; a free mapping such as model.hf_config
is one leaf.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from enum import Enum
from functools import cache
from typing import Any, cast

from launcher.schema import RunConfig

EXAMPLES: Mapping[type, str] = {bool: "true", int: "1", float: "1.0", str: "TEXT"}


@dataclass(frozen=True, kw_only=True)
class Key:
    """One leaf. `default` is a plain value and means nothing where `required` is true."""

    name: str
    owner: type
    """The dataclass that declares it, under the last part of `name`."""

    type: Any
    """The annotation without `| None`."""

    optional: bool
    required: bool
    default: Any

    @property
    def is_free(self) -> bool:
        """True for a mapping without a schema, whose entries are the person's own."""
        return typing.get_origin(self.type) is dict

    @property
    def is_list(self) -> bool:
        """True for a list."""
        return typing.get_origin(self.type) is list

    @property
    def element_type(self) -> Any:
        """What a list holds, otherwise the type itself."""
        return typing.get_args(self.type)[0] if self.is_list else self.type

    @property
    def choices(self) -> tuple[str, ...]:
        """The names of the members where it is an enum or a list of one, otherwise nothing."""
        element = self.element_type
        return tuple(element.__members__) if isinstance(element, type) and issubclass(element, Enum) else ()

    @property
    def type_text(self) -> str:
        """The type in words a person can act on."""
        one = ", ".join(self.choices) or ("mapping" if self.is_free else self.element_type.__name__)
        text = f"list of {one}" if self.is_list else f"one of {one}" if self.choices else one
        return f"{text}, or null" if self.optional else text

    @property
    def example(self) -> str:
        """A value of the right type as typed in an override: the default where it says something."""
        if not self.required and self.default is not None:
            return as_typed(self.default)
        one = self.choices[0] if self.choices else EXAMPLES[self.element_type]
        return f"[{one}]" if self.is_list else one


def as_typed(value: Any) -> str:
    """A plain value as Hydra's override grammar reads it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(as_typed(item) for item in cast(list[Any], value))}]"
    if isinstance(value, dict):
        items = cast(dict[Any, Any], value).items()
        return f"{{{','.join(f'{key}:{as_typed(item)}' for key, item in items)}}}"
    return str(value)


def plain(value: Any) -> Any:
    """The value with enum members as their names, also inside lists and mappings."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, list | tuple):
        return [plain(item) for item in cast(list[Any], value)]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in cast(dict[Any, Any], value).items()}
    return value


@cache
def keys_of(cls: type = RunConfig) -> Mapping[str, Key]:
    """Every leaf by dotted name, in the order of declaration."""
    hints = typing.get_type_hints(cls)
    found: dict[str, Key] = {}
    for field in fields(cls):
        hint = hints[field.name]
        if is_dataclass(hint):
            nested = keys_of(cast(type, hint))
            found |= {f"{field.name}.{name}": _renamed(key, prefix=field.name) for name, key in nested.items()}
        else:
            found[field.name] = _key(field, owner=cls, hint=hint)
    return types.MappingProxyType(found)


def free_key_of(name: str) -> Key | None:
    """The free mapping that a dotted name is an entry of, or None."""
    return next((k for k in keys_of().values() if k.is_free and name.startswith(f"{k.name}.")), None)


def is_section(name: str) -> bool:
    """True for a group or a part of one: a name that keys begin with."""
    return any(key.startswith(f"{name}.") for key in keys_of())


def _key(field: Field[Any], *, owner: type, hint: Any) -> Key:
    required = field.default is MISSING and field.default_factory is MISSING
    default = field.default if field.default_factory is MISSING else field.default_factory()
    inner = [arg for arg in typing.get_args(hint) if arg is not type(None)]
    optional = isinstance(hint, types.UnionType) and len(inner) < len(typing.get_args(hint))
    return Key(
        name=field.name,
        owner=owner,
        type=inner[0] if optional else hint,
        optional=optional,
        required=required,
        default=None if required else plain(default),
    )


def _renamed(key: Key, *, prefix: str) -> Key:
    return replace(key, name=f"{prefix}.{key.name}")

"""Every field of the configuration can be set from the command line, with a value of its type and, where it may be
null, with null."""

from enum import Enum
from typing import Any

import pytest

from launcher.compose import compose
from launcher.keys import Key, as_typed, keys_of
from launcher.resolved import flatten

KEYS = keys_of()
GROUPS = sorted({name.partition(".")[0] for name in KEYS})


def another(key: Key) -> Any:
    """A value of the key's type that is not its default, enums by name; the default where an enum has one member."""
    if issubclass(key.element_type, Enum):
        one = next((name for name in key.choices if name != key.default), key.default)
    else:
        one = {bool: not key.default, int: 7, float: 0.75, str: "text"}[key.element_type]
    return [one] if key.is_list else one


@pytest.mark.parametrize("group", GROUPS)
def test_every_field_takes_a_value_of_its_type(group: str) -> None:
    values = {n: another(k) for n, k in KEYS.items() if n.partition(".")[0] == group and not k.is_free}
    found = flatten(compose([f"{name}={as_typed(value)}" for name, value in values.items()]).config)
    assert {name: found[name] for name in values} == values
    assert {name: type(found[name]) for name in values} == {name: type(value) for name, value in values.items()}


def test_every_nullable_field_takes_null() -> None:
    names = [name for name, key in KEYS.items() if key.optional]
    found = flatten(compose([f"{name}=null" for name in names]).config)
    assert [name for name in names if found[name] is not None] == []


def test_every_mapping_takes_new_keys() -> None:
    names = [name for name, key in KEYS.items() if key.is_free]
    found = flatten(compose([f"+{name}.new_key=[1,2]" for name in names]).config)
    assert [found[name]["new_key"] for name in names] == [[1, 2]] * len(names)


def test_the_schema_is_seen_whole() -> None:
    """A mistake in `keys_of` would make the tests above pass on nothing."""
    assert {"optimizer.ddp.bucket_size", "model.peft.dim", "performance.sequence_packing.enabled"} <= set(KEYS)
    assert len(KEYS) > 250

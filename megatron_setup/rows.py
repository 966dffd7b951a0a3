"""Shapes that the tables of this package share: settings that keep upstream's name, conditions, and keys nobody reads.

Owns no rule. Torch-free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from launcher.requirement import Condition, Equals, OneOf, Requirement, Subject
from launcher.schema import RunConfig


def given(section: Any, *, names: Iterable[str]) -> dict[str, Any]:
    """The settings of `names` that are not null, by name: null leaves upstream's own value."""
    return {name: value for name in names if (value := getattr(section, name)) is not None}


def where(who: str, *, text: str, test: Callable[[RunConfig], bool]) -> Condition:
    """A condition on the configuration alone; `who` needs the row."""
    return Condition(who=who, text=text, test=lambda subject: test(subject.config))


def has_experts(subject: Subject) -> bool:
    """The model is known to be a mixture of experts."""
    return subject.architecture is not None and subject.architecture.num_moe_experts is not None


def is_dense(subject: Subject) -> bool:
    """The model is known to have no experts."""
    return subject.architecture is not None and subject.architecture.num_moe_experts is None


def unread(
    keys: Mapping[str, str], *, when: Condition, why: str, source: str, reads: tuple[str, ...], off: Any = None
) -> tuple[Requirement, ...]:
    """A row for each key (by code) that nothing reads under `when`: it must then be off (null or `off`)."""
    want = Equals(None) if off is None else OneOf((off, None))
    return tuple(
        Requirement(code=code, key=key, want=want, when=when, why=why, source=source, reads=reads)
        for code, key in keys.items()
    )

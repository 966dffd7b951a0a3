"""Shapes that the tables of this package share: settings under upstream's names, conditions, keys that nobody reads.

Owns no rule. Torch-free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from launcher.requirement import Check, Condition, Equals, Finding, OneOf, Requirement, Subject, show
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


@dataclass(frozen=True)
class SwitchedOff:
    """The key has one of `values` (the first is the one to suggest). The hints also turn off the `followers` (by key,
    with their value when off), which nothing reads then.
    """

    values: tuple[Any, ...]
    followers: Mapping[str, Any]

    @property
    def text(self) -> str:
        return OneOf(self.values).text

    def find(self, subject: Subject, *, key: str) -> Finding | None:
        finding = OneOf(self.values).find(subject, key=key)
        if finding is None:
            return None
        left = tuple(f"{k}={show(off)}" for k, off in self.followers.items() if subject.value(k) != off)
        return replace(finding, hints=finding.hints + left)


def above_zero(key: str, *, typed: str, high: float | None = None) -> Check:
    """A number above 0, and at most `high`; the hint is `typed`."""
    text = "above 0" if high is None else f"above 0 and at most {high}"

    def test(subject: Subject) -> Finding | None:
        found = subject.value(key)
        if found > 0.0 and (high is None or found <= high):
            return None
        return Finding(found=show(found), wanted=text, hints=(f"{key}={typed}",))

    return Check(text, test)


def unread(
    keys: Mapping[str, str], *, when: Condition, why: str, source: str, reads: tuple[str, ...], off: Any = None
) -> tuple[Requirement, ...]:
    """A row for each key (by code) that nothing reads under `when`: it must then be off (null or `off`)."""
    want = Equals(None) if off is None else OneOf((off, None))
    return tuple(
        Requirement(code=code, key=key, want=want, when=when, why=why, source=source, reads=reads)
        for code, key in keys.items()
    )

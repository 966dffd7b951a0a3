"""A rule is a row of data: `Requirement`. Everything a person reads about it comes from the row.

Owns the row, the kinds of `want`, the violation and its one renderer. The rows themselves live in the table modules
(`megatron_setup/*.py`, `zero_kl/requirements.py`); `launcher.rules` collects them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter
from typing import Any, Protocol, cast

from launcher.schema import Architecture, RunConfig


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What a rule looks at: the run's configuration and what is known of the model's shape.

    `architecture` is None when the shape is not known before a download; rules that need it then do not apply.
    """

    config: RunConfig
    architecture: Architecture | None

    def value(self, key: str) -> Any:
        """The value at a dotted key of the configuration; a misspelt key is our bug and raises AttributeError."""
        return attrgetter(key)(self.config)


class Severity(Enum):
    """An error stops the run; a warning is printed and does not."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, kw_only=True)
class Condition:
    """When a row applies. `who` names the party that needs it, as it reads in the error ("zero-KL needs 1")."""

    who: str
    text: str
    test: Callable[[Subject], bool]

    def __and__(self, other: Condition) -> Condition:
        return Condition(
            who=self.who,
            text=f"{self.text} and {other.text}",
            test=lambda subject: self.test(subject) and other.test(subject),
        )


ALWAYS = Condition(who="the run", text="always", test=lambda _: True)
KNOWN_ARCHITECTURE = Condition(
    who="the model", text="the model's shape is known", test=lambda s: s.architecture is not None
)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a check saw. `hints` are the overrides that, typed together, make this row hold; may be empty."""

    found: str
    wanted: str
    arithmetic: str = ""
    hints: tuple[str, ...] = ()


class Want(Protocol):
    """What a row asks of its key."""

    @property
    def text(self) -> str:
        """The wish in words, for `explain` and the docs page."""
        ...

    def find(self, subject: Subject, *, key: str) -> Finding | None:
        """None where the wish is met."""
        ...


def show(value: Any) -> str:
    """A value as a person would type it in an override."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(show(item) for item in cast(list[Any], value))}]"
    return str(value.value) if isinstance(value, Enum) else str(value)


def _same(found: Any, wanted: Any) -> bool:
    """Equal, and both or neither a bool: Python takes true for 1."""
    return found == wanted and isinstance(found, bool) == isinstance(wanted, bool)


@dataclass(frozen=True)
class Equals:
    """The key has exactly this value (compared with its type: true is not 1)."""

    value: Any

    @property
    def text(self) -> str:
        return show(self.value)

    def find(self, subject: Subject, *, key: str) -> Finding | None:
        found = subject.value(key)
        if _same(found, self.value):
            return None
        return Finding(found=show(found), wanted=self.text, hints=(f"{key}={self.text}",))


@dataclass(frozen=True)
class OneOf:
    """The key has one of these values, types compared too; the first is the one to suggest."""

    values: tuple[Any, ...]

    @property
    def text(self) -> str:
        return " or ".join(show(v) for v in self.values)

    def find(self, subject: Subject, *, key: str) -> Finding | None:
        found = subject.value(key)
        if any(_same(found, value) for value in self.values):
            return None
        return Finding(found=show(found), wanted=self.text, hints=(f"{key}={show(self.values[0])}",))


@dataclass(frozen=True)
class Between:
    """A finite number within [low, high]; None for a side without a limit. An unset key (null) is fine."""

    low: float | None = None
    high: float | None = None

    @property
    def text(self) -> str:
        if self.high is None:
            return f"at least {self.low}"
        return f"at most {self.high}" if self.low is None else f"between {self.low} and {self.high}"

    def find(self, subject: Subject, *, key: str) -> Finding | None:
        found = subject.value(key)
        if found is None:
            return None
        low = -math.inf if self.low is None else self.low
        high = math.inf if self.high is None else self.high
        nearest = min(max(found, low), high) if math.isfinite(found) else min(low, high, key=abs)
        if nearest == found:
            return None
        return Finding(found=show(found), wanted=self.text, hints=(f"{key}={show(nearest)}",))


@dataclass(frozen=True)
class Check:
    """A wish over several keys, with its arithmetic: `find` gets the subject and returns a Finding or None."""

    text: str
    test: Callable[[Subject], Finding | None]

    def find(self, subject: Subject, *, key: str) -> Finding | None:
        del key  # the test knows its keys; the row's key is where the error points
        return self.test(subject)


@dataclass(frozen=True, kw_only=True)
class Requirement:
    """One rule. `code` is stable for ever; `source` says where it was read or measured, with the version."""

    code: str
    key: str
    want: Want
    why: str
    source: str
    when: Condition = ALWAYS
    severity: Severity = Severity.ERROR
    reads: tuple[str, ...] = field(default=())
    """Further keys the rule looks at, for `explain KEY`."""

    def check(self, subject: Subject) -> Violation | None:
        """The violation of this row by this subject, or None (also where the row does not apply)."""
        if not self.when.test(subject):
            return None
        finding = self.want.find(subject, key=self.key)
        return None if finding is None else Violation(row=self, finding=finding)


@dataclass(frozen=True, kw_only=True)
class Violation:
    """A row and what it found."""

    row: Requirement
    finding: Finding


def check_all(table: Sequence[Requirement], *, subject: Subject) -> tuple[Violation, ...]:
    """Every violation of the table, in the table's order."""
    return tuple(v for row in table if (v := row.check(subject)) is not None)


def render(violation: Violation) -> str:
    """The text of one violation, as in the golden files; ends without a newline."""
    row, finding = violation.row, violation.finding
    lines = [
        f"{row.severity.value}[{row.code}]: {row.key} is {finding.found}, {row.when.who} needs {finding.wanted}",
        f"  why:    {row.why}",
        f"  source: {row.source}",
    ]
    if finding.arithmetic:
        lines.insert(1, f"  found:  {finding.arithmetic}")
    if finding.hints:
        lines.append(f"hint: {' '.join(finding.hints)}")
    return "\n".join(lines)

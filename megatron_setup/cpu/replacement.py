"""One replaced name of somebody else's library as a row of data, and the function that puts rows in force.

Owns the row's shape and the error for a name that upstream no longer has. The rows are in `table.py`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from launcher.errors import NodeError


@dataclass(frozen=True)
class Constant:
    """A plain value as the stand-in."""

    value: Any


@dataclass(frozen=True, kw_only=True)
class Replacement:
    """Upstream names that get one stand-in, for one reason."""

    targets: tuple[str, ...]
    """Dotted names: module, then attribute, with a class between them for a method."""

    by: str | Constant
    """The dotted name of the stand-in (imported when the row is applied), or a constant."""

    why: str
    """What fails on a CPU without this row."""

    unbound_without: str = ""
    """The package without which upstream does not bind the name at all; empty: the name must exist."""


def apply_replacements(rows: Iterable[Replacement]) -> None:
    """Put every row in force.

    Raises NodeError for a target that the installed library does not have: a stand-in that nobody calls would leave
    the real thing running.
    """
    for row in rows:
        stand_in = row.by.value if isinstance(row.by, Constant) else find_name(row.by)
        for target in row.targets:
            owner_name, _, name = target.rpartition(".")
            owner = find_name(owner_name)
            if not row.unbound_without and not hasattr(owner, name):
                raise _missing(target, row=row)
            setattr(owner, name, stand_in)


def find_name(dotted: str) -> Any:
    """The module or the attribute of a module that `dotted` names; NodeError names the part that is not there."""
    found = importlib.import_module(dotted.partition(".")[0])
    done = found.__name__
    for part in dotted.split(".")[1:]:
        done = f"{done}.{part}"
        if not hasattr(found, part):
            try:
                importlib.import_module(done)
            except ModuleNotFoundError as error:
                raise NodeError(f"error: {done} does not exist, looked for {dotted}") from error
        found = getattr(found, part)
    return found


def _missing(target: str, *, row: Replacement) -> NodeError:
    return NodeError(
        f"error: the CPU platform replaces {target}, which the installed version does not have\n"
        f"  why:    {row.why}\n"
        "hint: install the versions in pyproject.toml (extra megatron)"
    )

"""A patch of somebody else's library as a row of data, and the one context manager that applies rows.

Owns the checks that make a patch honest: only on versions it was tested with, proven to be in force, always restored.
"""

from __future__ import annotations

import importlib.metadata
import pkgutil
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

from packaging.specifiers import SpecifierSet

from launcher.errors import NodeError


class Rung(Enum):
    """The ladder of means, mildest first; a patch says why nothing milder would do."""

    SETTING = "setting"
    SUBCLASS = "subclass"
    TORCH_LIBRARY = "torch.library"
    MONKEYPATCH = "monkeypatch"


@dataclass(frozen=True, kw_only=True)
class Patch:
    """One replaced object. `targets` are dotted names, of a module's or a class's attributes, all bound to it."""

    targets: tuple[str, ...]
    replacement: Any
    why: str
    upstream: str
    """Where upstream's code or discussion is."""

    tested_versions: Mapping[str, str]
    """Distribution to version specifier; any other version is refused."""

    remove_when: str
    rung: Rung
    rung_reason: str


@contextmanager
def applied(patches: Sequence[Patch]) -> Generator[None]:
    """Apply in order, prove each, and restore in reverse also after an exception; may be nested.

    Raises NodeError for a version a patch was not tested with, or a target that does not exist; nothing stays applied.
    """
    with ExitStack() as stack:
        for patch in patches:
            check_versions(patch)
            for target in patch.targets:
                stack.enter_context(_replaced(target, patch=patch))
        prove(patches)
        yield


def check_versions(patch: Patch) -> None:
    """Raise NodeError unless every distribution is installed in a version the patch was tested with."""
    for name, wanted in patch.tested_versions.items():
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found = "absent"
        if found == "absent" or not SpecifierSet(wanted).contains(found, prereleases=True):
            raise NodeError(
                f"error: {name} is {found}, the patch of {patch.targets[0]} was tested with {wanted}\n"
                f"  why:    {patch.why}"
            )


def prove(patches: Sequence[Patch]) -> None:
    """Raise NodeError if a target is not the replacement: a patch that silently did not take is the worst mismatch."""
    for patch in patches:
        for target in patch.targets:
            owner, name = _owner_of(target)
            if getattr(owner, name) is not patch.replacement:
                raise NodeError(f"error: the patch of {target} is not in force\n  why:    {patch.why}")


@contextmanager
def _replaced(target: str, *, patch: Patch) -> Generator[None]:
    owner, name = _owner_of(target)
    if not hasattr(owner, name):
        raise NodeError(f"error: {target} does not exist, nothing to patch\n  why:    {patch.why}")
    original = getattr(owner, name)
    setattr(owner, name, patch.replacement)
    try:
        yield
    finally:
        setattr(owner, name, original)


def _owner_of(target: str) -> tuple[Any, str]:
    """The module, or the class in a module, and the attribute's name."""
    owner, _, name = target.rpartition(".")
    return pkgutil.resolve_name(owner), name

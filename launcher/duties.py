"""docs/setup.md and docs/zero_kl.md: each function of the systems this one re-thinks, its home here, and its test.

Owns the pages' layout. Their words are in docs/setup.toml and docs/zero_kl.toml: data for readers, which no code of the
product needs, so it is no Python. `python -m launcher.docs` writes the pages.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from launcher.markdown import table

ROOT = Path(__file__).resolve().parents[1]
SOURCES = (ROOT / "docs" / "setup.toml", ROOT / "docs" / "zero_kl.toml")
"""The pages lie beside them."""

RULE = re.compile(r"[A-Z]{2}\d{3}")
"""A home that is a row of docs/requirements.md."""


@dataclass(frozen=True, kw_only=True)
class Duty:
    """One function, class or constant of the other system.

    A home is a dotted name, the code of a rule, or a distribution with its version: upstream does it since then.
    A test is `tests/x.py::name`; those under tests/gpu are scripts, named by the function that checks.
    """

    name: str
    duty: str
    homes: tuple[str, ...]
    tests: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step of a procedure, in its order; `files` are paths from the repository's root."""

    name: str
    does: str
    leaves: str
    files: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Page:
    """`text` opens the page, `procedure` heads its steps; `module` is where the other system has the names."""

    text: str
    procedure: str
    module: str
    steps: tuple[Step, ...]
    duties: tuple[Duty, ...]


def read_page(source: Path) -> Page:
    """The words of a page. Raises KeyError or TypeError where a row lacks a field or has one more."""
    data: dict[str, Any] = tomllib.loads(source.read_text(encoding="utf-8"))
    return Page(
        text=data["text"].strip(),
        procedure=data["procedure"],
        module=data["module"],
        steps=tuple(Step(**_frozen(row)) for row in data["step"]),
        duties=tuple(Duty(**_frozen(row)) for row in data["duty"]),
    )


def _frozen(row: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(cast(list[str], value)) if isinstance(value, list) else value for key, value in row.items()}


def render_page(page: Page) -> str:
    """The page, ending with a newline."""
    steps = (
        (f"{n}. {step.name}", step.does, step.leaves, _joined(_link(Path(file).name, path=file) for file in step.files))
        for n, step in enumerate(page.steps, start=1)
    )
    duties = (
        (f"`{row.name}`", row.duty, _joined(map(_home, row.homes)), _joined(map(_test, row.tests)))
        for row in page.duties
    )
    parts = (
        page.text,
        f"## {page.procedure}",
        table(("step", "what it does", "what it leaves", "files"), rows=steps),
        "## Where each duty lives",
        f"The names are those of NeMo-RL's `{page.module}`.",
        table(("name", "duty", "home", "test"), rows=duties),
    )
    return "\n\n".join(parts) + "\n"


def module_of(home: str) -> tuple[str, str]:
    """The file of a dotted name, from the repository's root, and the rest of the name. Raises LookupError."""
    parts = home.split(".")
    for n in range(len(parts), 0, -1):
        for file in (Path(*parts[:n]).with_suffix(".py"), Path(*parts[:n], "__init__.py")):
            if (ROOT / file).is_file():
                return str(file), ".".join(parts[n:])
    raise LookupError(f"{home} begins with no module")


def _home(home: str) -> str:
    if " " in home:
        return home
    return _link(home, path="docs/requirements.md" if RULE.fullmatch(home) else module_of(home)[0])


def _test(test: str) -> str:
    path, _, name = test.partition("::")
    return _link(name, path=path)


def _link(text: str, *, path: str) -> str:
    return f"[`{text}`](../{path})"


def _joined(parts: Iterable[str]) -> str:
    return " · ".join(parts)

"""What a probe found, as a table for a person and as an option of group `cluster`.

Owns the file of a profile: conf/cluster/NAME.yaml, where every option of the group lives.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from launcher.errors import ConfigError, SubmissionError
from launcher.files import write_text
from launcher.overrides import reads_as_text

_WIDTH, _LABEL = 80, 14


@dataclass(frozen=True)
class Fact:
    """Something found: a value of a key in group `cluster`, or only worth knowing (`key` is None)."""

    label: str
    found: str
    source: str = field(kw_only=True)
    key: str | None = field(kw_only=True, default=None)
    value: str | int | None = field(kw_only=True, default=None)


def render_facts(facts: Sequence[Fact]) -> str:
    """A line for each fact: what, found, where; in 80 columns, a longer find goes on in the next line."""
    width = _WIDTH - _LABEL - max((len(fact.source) for fact in facts), default=0) - 3
    lines: list[str] = []
    for fact in facts:
        first, *rest = textwrap.wrap(fact.found, width=width)
        lines.append(f"{fact.label:{_LABEL}s} {first:{width}s}  {fact.source}")
        lines += [f"{'':{_LABEL}s} {line}" for line in rest]
    return "\n".join(lines)


def profile_text(facts: Sequence[Fact], *, name: str) -> str:
    """The YAML file: keys with their values, and what is only worth knowing as comments."""
    noted = [f"# {fact.label}: {fact.found}" for fact in facts if fact.key is None]
    keys = [f"{fact.key}: {json.dumps(fact.value)}" for fact in facts if fact.key is not None]
    return "\n".join([f"# python -m launcher plan cluster={name}", *noted, "kind: slurm", *keys]) + "\n"


def profile_name(text: str) -> str:
    """The name of an option; raises ConfigError for one that Hydra could not read, or would read as a number."""
    if not re.fullmatch(r"\w[\w-]*", text):
        raise ConfigError(f"error: {text} is no name of a profile\nhint: letters, digits, _ and -")
    if not reads_as_text(text):
        why = f"cluster={text} is read as a number, true, false or null, and names no file"
        hint = f"python -m launcher probe cluster_{text}"
        raise ConfigError(f"error: {text} is no name of a profile\n  why:    {why}\nhint: {hint}")
    return text


def write_profile(path: Path, *, text: str, force: bool) -> None:
    """Write the file. Raises ConfigError where there is one and `force` is not set, SubmissionError from the disk."""
    if path.exists() and not force:
        raise ConfigError(f"error: {path} exists\nhint: force=true, or another name")
    try:
        write_text(path, text=text)
    except OSError as error:
        raise SubmissionError(f"error: the profile cannot be written: {error}") from None

"""What is known of a key or of a rule, as text: the `explain` verb. Owns finding out who set a value.

The words about a rule are its row's, those about a key are the docstring under its field; nothing is written twice.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping, Sequence
from functools import cache, reduce
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from launcher import node_tables
from launcher.compose import CONF, Composed, Layer, group_options, layers
from launcher.diagnose import Problem, near_keys, refusal
from launcher.keys import Key, as_typed, free_key_of, is_section, keys_of, plain
from launcher.overrides import is_choice, read_overrides
from launcher.requirement import Requirement
from launcher.suggest import nearest
from launcher.sweep.expand import EXAMPLES

_SWEEPS = {
    "sweep.zip": "keys with lists of values that go together, first with first, instead of each with each",
    "sweep.points": "points written out, each a mapping; beside lists of values each is combined with each of theirs",
    "sweep.exclude": "points to leave out: all that have every value of one of the mappings",
}
"""No keys of the schema: `launcher.sweep.expand` reads them off the command line."""


def explain_key(key: str, *, composed: Composed, rules: Sequence[Requirement]) -> str:
    """A key's value, type, default, meaning, who set it and which rules read it; of a group, the values of its keys.

    An entry of a free mapping counts as a key. Raises ConfigError with the nearest keys for one that does not exist.
    """
    if key in _SWEEPS:
        return _render(f"{key}, a word of a sweep (-m)", lines={"about": _SWEEPS[key], "example": EXAMPLES[key]})
    if is_section(key) or key in group_options():
        return _explain_section(key, composed=composed)
    found = keys_of().get(key) or free_key_of(key)
    value = _lookup(composed.config, path=key) if found else None
    if found is None or value is None:
        near = near_keys(key)
        details = {"near": ", ".join(near)} if near else {"groups": ", ".join(group_options())}
        raise refusal([Problem(text=f"{key} is not a key", details=details, hint=near[0] if near else "")])
    lines = {
        "type": found.type_text if found.name == key else f"an entry of the {found.type_text} {found.name}",
        "default": "none" if found.required or found.name != key else as_typed(found.default),
        "about": field_docstring(found),
        "set by": _set_by(key, composed=composed),
        "rules": _rules_reading(found.name, rules=rules),
    }
    return _render(f"{key} = {as_typed(value[0])}", lines=lines)


def explain_code(code: str, *, rules: Sequence[Requirement]) -> str:
    """A row in full: a rule's, or one of a node's. Raises ConfigError with the nearest codes for one there is not."""
    wanted = code.upper()
    row = next((rule for rule in rules if rule.code == wanted), None)
    if row is None:
        return _explain_node_row(wanted, codes=[rule.code for rule in rules])
    lines = {
        "needs": row.want.text,
        "when": row.when.text,
        "for": row.when.who,
        "why": row.why,
        "source": row.source,
        "reads": ", ".join((row.key, *row.reads)),
    }
    return _render(f"{row.severity.value}[{row.code}]: {row.key}", lines=lines)


def _explain_node_row(code: str, *, codes: Sequence[str]) -> str:
    """A row about a node and not about a key; `codes` are the rules'."""
    found = {code: (table.title, row) for table in node_tables.tables() for code, row in table.by_column().items()}
    if code not in found:
        near = nearest(code, names=[*codes, *found])[:5]
        raise refusal([Problem(text=f"no rule is called {code}", details={"near": ", ".join(near)}, hint=near[0])])
    title, row = found[code]
    lines = {column: text.strip("`") for column, text in row.items() if column != "code" and text}
    return _render(f"{code}: {title}", lines=lines)


def field_docstring(key: Key) -> str:
    """The text under the key's field in its dataclass, on one line."""
    return _docstrings(key.owner)[key.name.rpartition(".")[2]]


@cache
def _docstrings(owner: type) -> Mapping[str, str]:
    """Python keeps no docstring of a field: they are the texts that follow an annotated name in the source."""
    body = cast(ast.ClassDef, ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]).body
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }


def _set_by(key: str, *, composed: Composed) -> str:
    """The last one that had a say: command line, a file (preset, config.yaml, option), or the schema's default."""
    words, _ = read_overrides(composed.overrides, options=group_options())
    typed = [word for word in words if not is_choice(word, options=group_options()) and _word_sets(word, key=key)]
    if typed:
        return f"the command line, {typed[-1].input_line}"
    files = [layer for layer in layers(composed.overrides) if _file_sets(layer, key=key)]
    if not files:
        return f"the default of {keys_of()[key].owner.__name__}"
    file, group = files[-1].file, files[-1].package.partition(".")[0]
    return _in_conf(file) + (f", chosen by {_chooser(group, words=words, composed=composed)}" if group else "")


def _chooser(group: str, *, words: Sequence[Override], composed: Composed) -> str:
    """Who chose the option of the group: a word, or the last file whose defaults list overrides it, or config.yaml."""
    typed = [word for word in words if word.key_or_group == group]
    if typed:
        return f"the command line, {typed[0].input_line}"
    keys = (f"override /{group}", f"override {group}", group)
    choosing = [layer.file for layer in layers(composed.overrides) if _defaults(layer) & set(keys)]
    return _in_conf(choosing[-1])


def _defaults(layer: Layer) -> set[str]:
    """The groups that a file's defaults list names, each with its `override`."""
    content = cast(dict[str, Any], OmegaConf.to_container(OmegaConf.load(layer.file), resolve=False))
    entries: list[Any] = content.get("defaults", [])
    return {key for entry in entries if isinstance(entry, dict) for key in cast(dict[str, Any], entry)}


def _in_conf(file: Path) -> str:
    return str(file.relative_to(CONF.parent))


def _word_sets(word: Override, *, key: str) -> bool:
    """True for the key itself, an entry below it, or a mapping above it that holds it."""
    name = word.key_or_group
    if not f"{key}.".startswith(f"{name}."):
        return name.startswith(f"{key}.")
    return _lookup(word.value(), path=key.removeprefix(name).removeprefix(".")) is not None


def _file_sets(layer: Layer, *, key: str) -> bool:
    if layer.package and not key.startswith(f"{layer.package}."):
        return False
    content = OmegaConf.to_container(OmegaConf.load(layer.file), resolve=False)
    found = _lookup(content, path=key.removeprefix(layer.package).removeprefix("."))
    return found is not None and found[0] != "???"


def _lookup(root: Any, *, path: str) -> tuple[Any] | None:
    """The plain value at a dotted path through dataclasses and mappings, in a tuple since it may be None."""
    for part in path.split(".") if path else ():
        children = cast(Mapping[str, Any], root if isinstance(root, dict) else getattr(root, "__dict__", {}))
        if part not in children:
            return None
        root = children[part]
    return (plain(root),)


def _explain_section(name: str, *, composed: Composed) -> str:
    options = group_options()
    head = f"{name}={composed.choices.get(name, 'none')}, of {', '.join(options[name])}" if name in options else name
    return "\n".join([head, *(_value_line(key, composed=composed) for key in keys_of() if key.startswith(f"{name}."))])


def _value_line(name: str, *, composed: Composed) -> str:
    key, value = keys_of()[name], plain(reduce(getattr, name.split("."), composed.config))
    note = "" if key.required or value == key.default else f"  (default {as_typed(key.default)})"
    return f"  {name} = {as_typed(value)}{note}"


def _rules_reading(name: str, *, rules: Sequence[Requirement]) -> str:
    reading = [row for row in rules if name == row.key or name in row.reads]
    return "\n".join(f"{row.code} ({row.key} needs {row.want.text}; {row.when.text})" for row in reading) or "none"


def _render(head: str, *, lines: Mapping[str, str]) -> str:
    width = max(len(name) for name in lines) + 2
    rows = [
        f"  {name + ':':<{width}}{textwrap.indent(text, ' ' * (width + 2)).lstrip()}" for name, text in lines.items()
    ]
    return "\n".join([head, *rows])

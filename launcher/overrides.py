"""The words of the command line: read with Hydra's own grammar, and checked by name against groups, options and keys.

Owns what can be said of a word before anything is composed. Values are judged in launcher.compose, by their types.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from launcher.diagnose import Problem, choosing, none_text, unknown_name, unknown_option, wrong_value
from launcher.keys import as_typed, free_key_of, keys_of

Options = Mapping[str, Sequence[str]]
"""The options of each group, `preset` among the groups."""

_HUB_ID = re.compile(r"\w[\w.-]*/[\w.-]+")
_PARSER = OverridesParser.create()


def read_overrides(words: Sequence[str], *, options: Options) -> tuple[list[Override], list[Problem]]:
    """The words that can be tried, and what is wrong with the others. `input_line` of each is the word as typed."""
    overrides: list[Override] = []
    problems: list[Problem] = []
    for word in dict.fromkeys(words):
        for found in _read_word(word, options=options):
            same = next((o for o in overrides if isinstance(found, Override) and _name(o) == _name(found)), None)
            if isinstance(found, Problem):
                problems.append(found)
            elif same is None:
                overrides.append(found)
            elif same.value() != found.value():
                problems.append(_typed_twice(same, second=found))
    return overrides, problems


def is_choice(override: Override, *, options: Options) -> bool:
    """True where the word chooses an option of a group. A mapping is no choice: Hydra merges it into the group."""
    return override.key_or_group in options and not isinstance(override.value(), dict)


def _read_word(word: str, *, options: Options) -> Iterator[Override | Problem]:
    try:
        override = _PARSER.parse_overrides([word])[0]
    except HydraException as error:
        yield _malformed(word, error=error, options=options)
        return
    problem = next((p for check in _CHECKS if (p := check(override, options))), None)
    if problem is not None:
        yield problem
    elif is_choice(override, options=options) and override.value() not in options[override.key_or_group]:
        yield from _model_folder(word, value=str(override.value()))
    else:
        yield override


def _model_folder(word: str, *, value: str) -> Iterator[Override | Problem]:
    """model=FOLDER and model=ORGANISATION/NAME are model=hf with its path (made absolute: ranks start elsewhere)."""
    folder = Path(value).expanduser()
    if folder.is_dir():
        folder = folder.resolve()
        value = str(folder)
    elif value.startswith((".", "~")) or not _HUB_ID.fullmatch(value):
        yield Problem(
            text=f"model={value}: there is no such folder",
            details={"why": "a value with a slash is a Hugging Face folder, or a Hub id such as organisation/name"},
        )
        return
    name = folder.name
    for line in ("model=hf", f"model.hf_path={_quoted(value)}", f"model.name={_quoted(name)}"):
        override = _PARSER.parse_overrides([line])[0]
        override.input_line = word
        yield override


def _malformed(word: str, *, error: HydraException, options: Options) -> Problem:
    if "=" not in word:
        return _without_value(word, options=options)
    name, _, value = word.partition("=")
    quoted = f"{name.strip()}={_quoted(value.strip())}"
    try:
        _PARSER.parse_overrides([quoted])
    except HydraException:
        quoted = ""
    return Problem(
        text=f"{word} cannot be read as KEY=VALUE", details={"why": str(error).splitlines()[0]}, hint=quoted
    )


def _without_value(word: str, *, options: Options) -> Problem:
    """The person may have meant an option (alone, or joined to its group by . or /), or a key of which the value lacks."""
    name = word.lstrip("+~").replace("/", ".")
    group, _, option = name.rpartition(".")
    groups = [group] if group else list(options)
    hints = [choosing(g, option) for g in groups if option in options.get(g, ())]
    hints += [f"{name}={keys_of()[name].example}"] if name in keys_of() else []
    return Problem(
        text=f"{word} has no value",
        details={"why": "an override is KEY=VALUE or GROUP=OPTION, without spaces"},
        hint=hints[0] if hints else "",
    )


def _typed_twice(first: Override, *, second: Override) -> Problem:
    return Problem(
        text=f"{_name(first)} is set twice, to different values",
        details={"first": str(first.input_line), "then": str(second.input_line)},
        hint=str(second.input_line),
    )


def _check_form(override: Override, options: Options) -> Problem | None:
    """Parts of Hydra's grammar that mean nothing to one run of this program."""
    del options
    word = str(override.input_line)
    name = _name(override)
    if override.is_sweep_override():
        return Problem(
            text=f"{word} names several values",
            details={"why": "a run takes one; a list is typed in brackets, a text with commas in quotes"},
            hint=f"{override.get_key_element()}={_first_value(override)}",
        )
    if override.package is not None:
        return Problem(
            text=f"{word}: a group has one place, @{override.package} cannot be given",
            hint=word.replace(f"@{override.package}", ""),
        )
    if re.match(r"hydra\b", name):
        return Problem(text=f"{word}: Hydra only composes here, its own settings would have no effect")
    return None


def _check_choice(override: Override, options: Options) -> Problem | None:
    group, value = _name(override), override.value()
    if not is_choice(override, options=options):
        return None
    if override.is_delete():
        return Problem(text=f"~{group}: every run needs this group", details={"valid": ", ".join(options[group])})
    option = as_typed(value)
    if option not in options[group] or not isinstance(value, str):
        is_path = group == "model" and isinstance(value, str) and ("/" in value or Path(value).is_dir())
        return None if is_path else unknown_option(group, option=option, options=options[group])
    if str(override.input_line).startswith(("+preset=", group if group != "preset" else "+preset=")):
        return None
    verb = "added with one +" if group == "preset" else "chosen without +"
    return Problem(text=f"{override.input_line}: a {group} is {verb}", hint=choosing(group, option))


def _check_key(override: Override, options: Options) -> Problem | None:
    name, word = _name(override), str(override.input_line)
    if name in options or name in keys_of() or free_key_of(name) or _is_section(name):
        return None
    dotted = name.replace("/", ".")
    group, _, option = dotted.rpartition(".")
    value = word.partition("=")[2]
    if option in options.get(group, ()):
        return Problem(text=f"{name}: an option is chosen with =", hint=choosing(group, option))
    if dotted in keys_of():
        return Problem(text=f"{name}: a key is joined to its group with . and not /", hint=f"{dotted}={value}")
    return unknown_name(dotted, value=value, options=options)


def _check_value(override: Override, options: Options) -> Problem | None:
    """What OmegaConf would take silently: the text None, and any number for true."""
    del options
    name, value = _name(override), override.value()
    key = keys_of().get(name)
    if key and value == "None":
        return wrong_value(key, value="None")
    if _holds_none(value):
        return none_text(name, hint=re.sub(r"\bNone\b", "null", str(override.input_line)))
    if key and key.type is bool and type(value) is int and value not in (0, 1):
        return wrong_value(key, value=str(value))
    return None


_CHECKS: tuple[Callable[[Override, Options], Problem | None], ...] = (
    _check_form,
    _check_choice,
    _check_key,
    _check_value,
)


def _name(override: Override) -> str:
    return override.key_or_group


def _is_section(name: str) -> bool:
    return any(key.startswith(f"{name}.") for key in keys_of())


def _holds_none(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_holds_none(item) for item in cast(dict[Any, Any], value).values())
    if isinstance(value, list):
        return any(_holds_none(item) for item in cast(list[Any], value))
    return value == "None"


def _first_value(override: Override) -> str:
    return as_typed(next(iter(override.sweep_iterator()))) if override.is_discrete_sweep() else ""


def _quoted(text: str) -> str:
    """A text in the quotes of Hydra's grammar."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

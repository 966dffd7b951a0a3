"""The words of the command line: read with Hydra's own grammar, and judged by the groups, options and keys there are.

Owns what can be said of a word before anything is composed. Values are judged in launcher.compose, by their types.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString, ValueType
from hydra.errors import HydraException

from launcher.diagnose import Problem, choosing, none_text, unknown_name, unknown_option, wrong_value
from launcher.keys import as_typed, free_key_of, is_section, keys_of

Options = Mapping[str, Sequence[str]]
"""The options of each group, `preset` among the groups."""

_HUB_ID = re.compile(r"\w[\w.-]*/[\w.-]+")
_PARSER = OverridesParser.create()


def read_overrides(words: Sequence[str], *, options: Options) -> tuple[list[Override], list[Problem]]:
    """The words that can be tried, and what is wrong with the others. `input_line` of each is the word as typed.

    A key is set once. An entry of a free mapping may be set and then removed, as a hint says to.
    """
    overrides: dict[str, Override] = {}
    problems: list[Problem] = []
    for word in words:
        for found in _read_word(word, options=options):
            if isinstance(found, Problem):
                problems.append(found)
            elif (first := overrides.setdefault(_slot(found), found)).value() != found.value() and str(
                first.value()
            ) != str(found.value()):
                problems.append(_typed_twice(first, second=found))
    return list(overrides.values()), problems


def _slot(override: Override) -> str:
    return f"{'~' if override.is_delete() else ''}{override.key_or_group}"


def reads_as_text(word: str) -> bool:
    """True where Hydra takes the word for a text, and not for a number, true, false or null."""
    try:
        return isinstance(_parse(f"key={word}").value(), str)
    except HydraException:
        return False


def is_choice(override: Override, *, options: Options) -> bool:
    """True where the word chooses an option of a group. A mapping is no choice: it is merged into the group's keys."""
    group = override.key_or_group
    return group in options and not (isinstance(override.value(), dict) and is_section(group))


def _read_word(word: str, *, options: Options) -> Iterator[Override | Problem]:
    try:
        override = _parse(word)
    except HydraException as error:
        yield _malformed(word, error=error) if "=" in word else _without_value(word, options=options)
        return
    problem = next((p for check in _CHECKS if (p := check(override, options))), None)
    if problem is not None:
        yield problem
    elif _names_model_folder(override, options=options):
        yield from _model_folder(word, value=str(override.value()))
    else:
        yield override


@lru_cache(maxsize=4096)
def _parse(word: str) -> Override:
    """Kept, since points of a sweep have most words in common and parsing takes a millisecond. Nobody changes it."""
    return _PARSER.parse_overrides([word])[0]


def _names_model_folder(override: Override, *, options: Options) -> bool:
    value = override.value()
    if override.key_or_group != "model" or not isinstance(value, str) or value in options["model"]:
        return False
    return "/" in value or Path(value).is_dir()


def _model_folder(word: str, *, value: str) -> Iterator[Override | Problem]:
    """The three words that model=FOLDER stands for. The folder is made absolute since ranks may start elsewhere."""
    folder = Path(value).expanduser()
    if value and folder.is_dir():
        folder = folder.resolve()
        value = str(folder)
    elif not _HUB_ID.fullmatch(value):
        yield Problem(
            text=f"{word}: there is no such folder",
            details={"why": "a model with a slash is a Hugging Face folder, or a Hub id such as organisation/name"},
        )
        return
    for line in ("model=hf", f"model.hf_path={_quoted(value)}", f"model.name={_quoted(folder.name)}"):
        override = _PARSER.parse_overrides([line])[0]
        override.input_line = word
        yield override


def _malformed(word: str, *, error: HydraException) -> Problem:
    """Mostly a text that needs quotes; where they do not help, Hydra's own words (below its line "Error parsing")."""
    name, value = (part.strip() for part in word.split("=", 1))
    key = keys_of().get(name)
    text = _quoted(value)
    hint = f"{name}=[{text}]" if key and key.is_list else f"{name}={text}"
    why = "a text with quotes, brackets, commas or a colon in it is put in quotes"
    try:
        _PARSER.parse_overrides([hint])
    except HydraException:
        lines = [line for line in str(error).splitlines() if not line.startswith("Error parsing override")]
        hint, why = "", lines[0]
    return Problem(text=f"{word} cannot be read as KEY=VALUE", details={"why": why}, hint=hint)


def _without_value(word: str, *, options: Options) -> Problem:
    """Meant was an option, alone or joined to its group by . or /, or a key whose value was forgotten."""
    if word.startswith("-"):
        why = "a sweep (-m) is for submit, plan and check"
        return Problem(text=f"{word} is not an option of this verb", details={"why": why})
    name = word.lstrip("+~").replace("/", ".")
    group, _, option = name.rpartition(".")
    hints = [choosing(g, option=option) for g in ([group] if group else options) if option in options.get(g, ())]
    if name in keys_of():
        hints.append(f"{name}={keys_of()[name].example}")
    why = "an override is KEY=VALUE or GROUP=OPTION, without spaces"
    return Problem(text=f"{word} has no value", details={"why": why}, hint=hints[0] if hints else "")


def _typed_twice(first: Override, *, second: Override) -> Problem:
    return Problem(
        text=f"{first.key_or_group} is set twice, to different values",
        details={"first": str(first.input_line), "then": str(second.input_line)},
        hint=str(second.input_line),
    )


def _check_form(override: Override, options: Options) -> Problem | None:
    """Parts of Hydra's grammar that mean nothing to one run of this program."""
    del options
    word = str(override.input_line)
    if not override.key_or_group:
        return Problem(text=f"{word} has no key")
    if override.is_sweep_override():
        why = "one run takes one value, -m runs them all; a list is typed in brackets, a text with commas in quotes"
        return Problem(text=f"{word} names several values", details={"why": why}, hint=_first_of_sweep(override))
    if override.package is not None:
        hint = word.replace(f"@{override.package}", "", 1)
        return Problem(text=f"{word}: a group has one place in the configuration, @ cannot move it", hint=hint)
    if override.is_delete() and override.value() is not None:
        return Problem(text=f"{word}: what is removed has no value", hint=override.get_key_element())
    if re.match(r"hydra\b", override.key_or_group):
        return Problem(text=f"{word}: Hydra only composes here; its own settings would have no effect")
    return None


def _check_choice(override: Override, options: Options) -> Problem | None:
    if not is_choice(override, options=options) or _names_model_folder(override, options=options):
        return None
    group, value = override.key_or_group, override.value()
    if override.is_delete():
        return Problem(text=f"{override.input_line}: every run has this group", details=_valid(options[group]))
    if isinstance(value, list) and value and value[0] in options[group]:
        why = "each option starts from the defaults of its group and would undo the one before"
        hint = choosing(group, option=str(value[0]))
        return Problem(text=f"{override.input_line}: a run has one option of {group}", details={"why": why}, hint=hint)
    if not isinstance(value, str) or value not in options[group]:
        return unknown_option(group, option=as_typed(value), options=options[group])
    if override.get_key_element() == choosing(group, option=value).partition("=")[0]:
        return None
    verb = "added with one +" if group == "preset" else "chosen without +"
    return Problem(text=f"{override.input_line}: an option of {group} is {verb}", hint=choosing(group, option=value))


def _check_key(override: Override, options: Options) -> Problem | None:
    name, value = override.key_or_group, str(override.input_line).partition("=")[2]
    if name in options or name in keys_of() or is_section(name) or free_key_of(name):
        return None
    if name.startswith("sweep."):
        return Problem(text=f"{name} is a word of a sweep", details={"why": "several points are asked for with -m"})
    dotted = name.replace("/", ".")
    group, _, option = dotted.rpartition(".")
    if option in options.get(group, ()):
        return Problem(text=f"{override.input_line}: an option is chosen with =", hint=choosing(group, option=option))
    if dotted in keys_of():
        return Problem(text=f"{override.input_line}: a key has dots, not slashes", hint=f"{dotted}={value}")
    return unknown_name(dotted, value=value, options=options)


def _check_sign(override: Override, options: Options) -> Problem | None:
    """The keys of the schema are all there: none can be added or removed. Entries of a free mapping can."""
    name, word = override.key_or_group, str(override.input_line)
    key = keys_of().get(name)
    if free_key_of(name) or is_choice(override, options=options) or (key and key.is_free and not override.is_delete()):
        return None
    if override.is_delete():
        hint = f"{name}={key.example if key.required else as_typed(key.default)}" if key else ""
        return Problem(text=f"{word}: a key of the schema cannot be removed", hint=hint)
    if override.is_add() or (override.is_force_add() and not key):
        return Problem(text=f"{word}: the key is there already, + would add a new one", hint=word.lstrip("+"))
    return None


def _check_value(override: Override, options: Options) -> Problem | None:
    """What OmegaConf would take silently: the text None, and any whole number for true."""
    del options
    value = override.value()
    key = keys_of().get(override.key_or_group)
    if key and value == "None":
        return wrong_value(key, value="None")
    if holds_none_text(value):
        hint = re.sub(r"\bNone\b", "null", str(override.input_line))
        return none_text(override.key_or_group, hint=hint)
    if key and key.type is bool and type(value) is int and value not in (0, 1):
        return wrong_value(key, value=str(value))
    return None


_CHECKS: tuple[Callable[[Override, Options], Problem | None], ...] = (
    _check_form,
    _check_choice,
    _check_key,
    _check_sign,
    _check_value,
)


def holds_none_text(value: Any) -> bool:
    """True for the text None, also inside a mapping or a list: YAML has no None, so somebody meant null."""
    if isinstance(value, dict):
        return any(holds_none_text(item) for item in cast(dict[Any, Any], value).values())
    if isinstance(value, list):
        return any(holds_none_text(item) for item in cast(list[Any], value))
    return value == "None"


def _valid(names: Sequence[str]) -> dict[str, str]:
    return {"valid": ", ".join(names)}


def _first_of_sweep(override: Override) -> str:
    """The word with the first of the values alone; "" where they are not listed (interval, glob)."""
    if override.value_type not in (ValueType.CHOICE_SWEEP, ValueType.SIMPLE_CHOICE_SWEEP, ValueType.RANGE_SWEEP):
        return ""
    return f"{override.get_key_element()}={next(override.sweep_string_iterator())}"


def _quoted(text: str) -> str:
    return QuotedString(text=text, quote=Quote.double).with_quotes()

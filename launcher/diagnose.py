"""What a refused word, value or file is called to its author: a `Problem` each, with the corrected word to type.

Owns the sentences. Finding out what is wrong is the work of launcher.overrides, launcher.compose and launcher.resolved.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from omegaconf.errors import ConfigKeyError, MissingMandatoryValue, OmegaConfBaseException
from yaml import MarkedYAMLError

from launcher.errors import ConfigError
from launcher.keys import Key, free_key_of, is_section, keys_of
from launcher.suggest import NEAR, nearest, nearness

_NUM_NEAR = 5
_NO_MAPPING = re.compile(r"Merge error: (?P<found>\w+) is not a subclass of (?P<owner>\w+)")


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is wrong. `hint` is the word that, typed in place of the refused one, repairs it; may be empty."""

    text: str
    details: Mapping[str, str] = field(default_factory=dict[str, str])
    hint: str = ""

    def render(self) -> str:
        """Error, details and hint, laid out as the violation of a rule is."""
        lines = [f"error: {self.text}", *(f"  {name + ':':<7} {text}" for name, text in self.details.items())]
        return "\n".join([*lines, f"hint: {shlex.quote(self.hint)}"] if self.hint else lines)


def refusal(problems: Iterable[Problem]) -> ConfigError:
    """All problems in one error."""
    return ConfigError("\n\n".join(problem.render() for problem in problems))


def choosing(group: str, *, option: str) -> str:
    """The word that chooses an option. A preset is added, since config.yaml names none that could be changed."""
    return f"{'+' if group == 'preset' else ''}{group}={option}"


def unknown_option(group: str, *, option: str, options: Sequence[str]) -> Problem:
    """The group has no such option: a misspelt one, or a value meant for one key of the group."""
    ranked = nearest(option, names=options)
    details = {"valid": ", ".join(ranked)}
    if group == "model":
        details["or"] = "a Hugging Face folder or Hub id, told by its slash: model=./folder, model=organisation/name"
    if group != "preset":
        details["why"] = f"{group}=... takes one of the group's options; one value of it is set with {group}.KEY=..."
    return Problem(text=f"{group} has no option {option}", details=details, hint=choosing(group, option=ranked[0]))


def unknown_name(name: str, *, value: str, options: Mapping[str, Sequence[str]]) -> Problem:
    """Neither a group nor a key: the nearest group where a word without dots is near one, else the nearest keys, or
    those of the section that is nearer."""
    group, section = nearest(name, names=options)[0], near_section(name)
    if "." not in name and not section and nearness(name, name=group) >= NEAR:
        option = nearest(value, names=options[group])[0]
        valid = ", ".join(nearest(name, names=options))
        return Problem(text=f"{name} is not a group", details={"valid": valid}, hint=choosing(group, option=option))
    near = near_keys(name)
    if near and nearness(name, name=near[0]) >= nearness(name, name=section):
        return Problem(text=f"{name} is not a key", details={"near": ", ".join(near)}, hint=f"{near[0]}={value}")
    head = section or name.partition(".")[0]
    valid = nearest(name, names=[key for key in keys_of() if key.startswith(f"{head}.")] or list(options))
    return Problem(text=f"{name} is not a key", details={"valid": ", ".join(valid)})


def near_section(name: str) -> str:
    """The section that was meant for a key, or whose first part was left out; empty where there is none.

    Of a misspelt key in it there is no hint: `optimizer.schedule` may be any key of optimizer.scheduler, and what
    others call peft.rank is model.peft.dim.
    """
    sections = dict.fromkeys(key.rpartition(".")[0] for key in keys_of())
    inner = [section for section in sections if "." in section]
    head = name.rpartition(".")[0]
    return next((s for s in inner if nearness(name, name=s) >= 0.8 or (head and f".{s}".endswith(f".{head}"))), "")


def near_keys(name: str) -> list[str]:
    """The keys near enough to a misspelt one, the nearest first; entries of a free mapping that is misspelt too."""
    head, _, last = name.rpartition(".")
    if head in keys_of():
        return [head]
    mappings = [key.name for key in keys_of().values() if key.is_free]
    entries = [f"{mapping}.{last}" for mapping in mappings if nearness(head, name=mapping) >= 0.8]
    return [key for key in nearest(name, names=[*entries, *keys_of()]) if nearness(name, name=key) >= NEAR][:_NUM_NEAR]


def wrong_value(key: Key, *, value: str) -> Problem:
    """A value of another type than the key's, or none of its enum's names."""
    if value == "None":
        return none_text(key.name, hint=f"{key.name}={'null' if key.optional else key.example}")
    text = f"{key.name} cannot be {value or 'empty'}"
    if not key.choices or key.is_list:
        hint = _as_list(value, key=key) or key.example
        return Problem(text=text, details={"needs": key.type_text}, hint=f"{key.name}={hint}")
    ranked = nearest(value, names=key.choices)
    hint = f"{key.name}={ranked[0]}" if nearness(value, name=ranked[0]) >= NEAR else ""
    return Problem(text=text, details={"valid": ", ".join(ranked)}, hint=hint)


def _as_list(value: str, *, key: Key) -> str:
    """The list that was meant by a text alone; empty where the key takes no texts, or a list or null was typed."""
    if not key.is_list or key.element_type is not str or value in ("", "null") or value[0] in "[{":
        return ""
    if re.fullmatch(r"[\w ./:@%+-]+", value) or value[0] in "'\"":
        return f"[{value}]"
    return "" if "'" in value else f"['{value}']"


def none_text(name: str, *, hint: str) -> Problem:
    """YAML and Hydra read None as a text of four letters."""
    return Problem(text=f"{name} is the text None", details={"why": "YAML and Hydra know no None: use null"}, hint=hint)


def refused_value(error: OmegaConfBaseException, *, word: str, entries: Sequence[str]) -> Problem:
    """OmegaConf refuses the value of a word. `entries` are those of the free mapping that the word reaches into."""
    name = re.sub(r"\[\d+\]$", "", str(error.full_key))
    value = word.partition("=")[2]
    if mapping := free_key_of(name):
        return no_entry(name, mapping=mapping.name, entries=entries, word=word)
    if name in keys_of():
        return wrong_value(keys_of()[name], value=value)
    if is_section(name):
        return _section_is_no_value(name, value=value)
    return Problem(text=f"{name} is not a key", details=_near_or_valid(name))


def _section_is_no_value(name: str, *, value: str) -> Problem:
    """A whole number for a part of a group whose keys are all counts is hinted at as one for each."""
    keys = [key for key in keys_of().values() if key.name.startswith(f"{name}.")]
    counts = all(key.type is int for key in keys) and value.isdecimal()
    each = ",".join(f"{key.name.removeprefix(f'{name}.')}:{value}" for key in keys)
    return Problem(
        text=f"{name} holds several keys, it cannot be {value}",
        details={"valid": ", ".join(key.name for key in keys)},
        hint=f"{name}={{{each}}}" if counts else "",
    )


def _near_or_valid(name: str) -> dict[str, str]:
    """The keys near to a misspelt one, else all of its section."""
    near = near_keys(name)
    if near:
        return {"near": ", ".join(near)}
    section = name.rpartition(".")[0]
    return {"valid": ", ".join(nearest(name, names=[key for key in keys_of() if key.startswith(f"{section}.")]))}


def no_entry(name: str, *, mapping: str, entries: Sequence[str], word: str) -> Problem:
    """An entry of a free mapping is changed or removed that is not there; adding one needs a +."""
    near = nearest(name.removeprefix(f"{mapping}."), names=entries)[:_NUM_NEAR]
    details = {"near": ", ".join(near)} if near else {}
    if word.startswith("~"):
        details["why"] = "nothing else sets it: leave this word out"
        return Problem(text=f"{name} is not there to be removed", details=details)
    details["why"] = f"{mapping} is a free mapping: a new entry is added with +"
    return Problem(text=f"{name} is not there to be changed", details=details, hint=f"+{word}")


def entry_exists(name: str, *, word: str) -> Problem:
    """A + for an entry of a free mapping that is there already."""
    return Problem(text=f"{name} is there already, + would add a new entry", hint=word.removeprefix("+"))


def missing_value(name: str, *, file: str = "") -> Problem:
    """A ??? that nobody filled; `file` is the option of its group that was chosen."""
    key = keys_of().get(name)
    details = {"needs": key.type_text} if key else {}
    if file:
        details["file"] = f"{file} does not set it"
    hint = f"{name}={key.example if key else 'VALUE'}"
    return Problem(text=f"{name} is required and not set", details=details, hint=hint)


def unresolved(error: OmegaConfBaseException) -> Problem:
    """An interpolation that leads nowhere, or to a value of another type."""
    return Problem(text=f"{error.full_key} cannot be resolved", details={"why": reason(error)})


def reason(error: OmegaConfBaseException) -> str:
    """OmegaConf's own words, without its list of types."""
    return str(error.msg).partition("\n")[0]


def in_file(file: str, *, error: OmegaConfBaseException) -> Problem:
    """A YAML file holds a key or value that the schema refuses, or lacks one."""
    name = str(error.full_key)
    if isinstance(error, MissingMandatoryValue):
        return Problem(text=f"{file}: {name} is missing")
    if isinstance(error, ConfigKeyError):
        return Problem(text=f"{file}: {name} is not a key", details=_near_or_valid(name))
    key = keys_of().get(name)
    details = {"why": reason(error)}
    return Problem(text=f"{file}: {name} is refused", details=details | ({"needs": key.type_text} if key else {}))


def broken_conf(error: Exception) -> Problem:
    """Hydra could not compose the files in conf/; its own text where the schema did not refuse a key or value."""
    if isinstance(error, MarkedYAMLError) and error.problem_mark:
        return _no_yaml(error, file=str(error.problem_mark.name), line=error.problem_mark.line + 1)
    message = str(error).partition("\nConfig search path")[0].strip()
    found = re.match(r"In '(?P<file>[^']+)': ", message)
    file = f"conf/{found['file']}.yaml" if found else "conf"
    cause = error.__cause__ or error.__context__
    if isinstance(cause, OmegaConfBaseException) and cause.full_key:
        return in_file(file, error=cause)
    if no_mapping := _NO_MAPPING.search(message):
        return _no_mapping(file, found=no_mapping["found"], owner=no_mapping["owner"])
    first, _, rest = message.removeprefix(found[0] if found else "").partition("\n")
    return Problem(text=f"{file}: {first}", details={"why": " ".join(rest.split())} if rest else {})


def _no_yaml(error: MarkedYAMLError, *, file: str, line: int) -> Problem:
    """PyYAML names the whole path; a person knows the file by its place in conf/."""
    place = f"conf/{file.rpartition('/conf/')[2]}"
    return Problem(text=f"{place}: line {line} is no YAML", details={"why": str(error.problem)})


def _no_mapping(file: str, *, found: str, owner: str) -> Problem:
    """A list or a value where the schema has a group or a part of one, the dataclass `owner`."""
    keys = [key.name for key in keys_of().values() if key.owner.__name__ == owner]
    section = keys[0].rpartition(".")[0]
    text = f"{file}: {section} is of type {found}, lines of KEY: VALUE are needed"
    return Problem(text=text, details={"valid": ", ".join(keys)})

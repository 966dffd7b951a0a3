"""What a refused word, value or file is called to its author: a `Problem` each, with the corrected word to type.

Owns the sentences. Finding out what is wrong is the work of launcher.overrides, launcher.compose and launcher.resolved.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from omegaconf.errors import ConfigKeyError, MissingMandatoryValue, OmegaConfBaseException

from launcher.errors import ConfigError
from launcher.keys import Key, keys_of
from launcher.suggest import NEAR, nearest, nearness

_NUM_NEAR = 5


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


def choosing(group: str, option: str) -> str:
    """The word that chooses an option. A preset is added, since config.yaml names none that could be changed."""
    return f"{'+' if group == 'preset' else ''}{group}={option}"


def unknown_option(group: str, *, option: str, options: Sequence[str]) -> Problem:
    """The group has no such option: a misspelt one, or a value meant for one key of the group."""
    ranked = nearest(option, options)
    details = {"valid": ", ".join(ranked)}
    if group == "model":
        details["or"] = "a Hugging Face folder or Hub id, told by its slash: model=./folder, model=organisation/name"
    if group != "preset":
        details["why"] = f"{group}=... takes one of the group's options; one value of it is set with {group}.KEY=..."
    return Problem(text=f"{group} has no option {option}", details=details, hint=choosing(group, ranked[0]))


def unknown_name(name: str, *, value: str, options: Mapping[str, Sequence[str]]) -> Problem:
    """Neither a group nor a key. The nearest group where the word is about as long as one, else the nearest keys."""
    group = nearest(name, options)[0]
    if "." not in name and nearness(name, group) >= NEAR:
        option = nearest(value, options[group])[0]
        details = {"valid": ", ".join(nearest(name, options))}
        return Problem(text=f"{name} is not a group", details=details, hint=choosing(group, option))
    near = near_keys(name)
    if near:
        return Problem(
            text=f"{name} is not a key", details={"near": ", ".join(near)}, hint=f"{near[0]}={value}"
        )
    head = name.partition(".")[0]
    valid = [key for key in keys_of() if key.startswith(f"{head}.")] or list(options)
    return Problem(text=f"{name} is not a key", details={"valid": ", ".join(valid)})


def near_keys(name: str) -> list[str]:
    """The keys near enough to a misspelt one, the nearest first. A leaf that was taken for a section is the nearest."""
    ranked = [key for key in nearest(name, keys_of()) if nearness(name, key) >= NEAR]
    leaf = name.rpartition(".")[0]
    return ([leaf] if leaf in keys_of() else ranked)[:_NUM_NEAR]


def wrong_value(key: Key, *, value: str) -> Problem:
    """A value of another type than the key's, or none of its enum's names."""
    if value == "None":
        return none_text(key.name, hint=f"{key.name}={'null' if key.optional else key.example}")
    details = {"needs": key.type_text}
    hint = key.example
    if key.choices and not key.is_list:
        ranked = nearest(value, key.choices)
        details = {"valid": ", ".join(ranked)}
        hint = ranked[0]
    return Problem(text=f"{key.name} cannot be {value or 'empty'}", details=details, hint=f"{key.name}={hint}")


def none_text(name: str, *, hint: str) -> Problem:
    """YAML and Hydra read None as a text of four letters."""
    return Problem(text=f"{name} is the text None", details={"why": "nothing is spelt null: use null"}, hint=hint)


def no_entry(name: str, *, mapping: str, entries: Iterable[str], word: str) -> Problem:
    """An entry of a free mapping that is not there is changed; adding one needs a +."""
    near = [e for e in nearest(name.removeprefix(f"{mapping}."), entries)][:_NUM_NEAR]
    details = {"near": ", ".join(near)} if near else {}
    details["why"] = f"{mapping} is a free mapping: a new entry is added with +"
    return Problem(text=f"{name} is not there to be changed", details=details, hint=f"+{word}")


def missing_value(key: Key) -> Problem:
    """A ??? that nobody filled."""
    return Problem(
        text=f"{key.name} is required and not set", details={"needs": key.type_text}, hint=f"{key.name}={key.example}"
    )


def in_file(file: str, *, error: OmegaConfBaseException) -> Problem:
    """A YAML file holds a key or value that the schema refuses, or lacks one."""
    name = str(error.full_key)
    if isinstance(error, MissingMandatoryValue):
        return Problem(text=f"{file}: {name} is missing")
    if isinstance(error, ConfigKeyError):
        return Problem(text=f"{file}: {name} is not a key", details={"near": ", ".join(near_keys(name))})
    key = keys_of().get(name)
    details = {"why": str(error.msg).splitlines()[0]}
    return Problem(text=f"{file}: {name} is refused", details=details | ({"needs": key.type_text} if key else {}))


def broken_conf(error: Exception) -> Problem:
    """Hydra could not compose the files in conf/; its own text where the schema did not refuse a key or value."""
    message = str(error).partition("\nConfig search path")[0].strip()
    found = re.match(r"In '(?P<file>[^']+)': ", message)
    file = f"conf/{found['file']}.yaml" if found else "conf"
    cause = error.__cause__ or error.__context__
    if isinstance(cause, OmegaConfBaseException) and cause.full_key:
        return in_file(file, error=cause)
    lines = message.removeprefix(found[0] if found else "").splitlines()
    return Problem(text=f"{file}: {lines[0]}", details={"why": " ".join(line.strip() for line in lines[1:])})

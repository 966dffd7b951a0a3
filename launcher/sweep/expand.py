"""From words with several values to the points of a sweep, in Hydra's own grammar. Composes nothing.

Owns the words `sweep.zip`, `sweep.points` and `sweep.exclude`, which Hydra does not have. Without them the points are
those of Hydra's BasicSweeper, in its order.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, IntervalSweep, Override, Transformer
from hydra.errors import HydraException

from launcher.errors import ConfigError
from launcher.keys import as_typed
from launcher.overrides import Options
from launcher.suggest import NEAR, nearest, nearness

FLAGS = ("-m", "--multirun")
_ZIP, _POINTS, _EXCLUDE = "sweep.zip", "sweep.points", "sweep.exclude"
EXAMPLES = {
    _ZIP: "'sweep.zip=[optimizer.lr,job.seed]'",
    _POINTS: "'sweep.points=[{parallelism:tp2,optimizer.lr:1e-4},{parallelism:pp2}]'",
    _EXCLUDE: "'sweep.exclude=[{parallelism:tp2,optimizer.lr:1e-4}]'",
}
"""What may be typed, by the word."""

_PARSER = OverridesParser.create()

Words = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Expansion:
    """`points` are the varying words of each point; `fixed` are the words that all share."""

    fixed: Words
    points: tuple[Words, ...]
    num_excluded: int = 0

    def words(self, point: Words) -> Words:
        """All words of a point."""
        return (*self.fixed, *point)


@dataclass(frozen=True, kw_only=True)
class _Axis:
    """Its values stand beside each other in the product; a value is one word, or several that go together."""

    keys: tuple[str, ...]
    values: tuple[Words, ...]


def is_sweep(words: Iterable[str]) -> bool:
    """True where the words ask for several points."""
    return any(word in FLAGS for word in words)


def expand(words: Sequence[str], *, options: Options) -> Expansion:
    """The product of the axes. Raises ConfigError where the words cannot be expanded; values are not judged here."""
    fixed: list[str] = []
    axes: list[_Axis] = []
    settings: dict[str, list[Any]] = {}
    for word in words:
        override = None if word in FLAGS else _parse(word)
        if override is None:
            fixed += [] if word in FLAGS else [word]
        elif override.key_or_group.startswith("sweep."):
            settings[override.key_or_group] = _setting(override)
        elif override.is_sweep_override():
            axes.append(_axis(override, options=options))
        else:
            fixed.append(word)
    axes = _zipped(axes, groups=settings.get(_ZIP, []))
    if _POINTS in settings:
        axes.append(_listed(settings[_POINTS]))
    _refuse_two_homes(fixed, axes=axes)
    points = tuple(tuple(itertools.chain(*values)) for values in itertools.product(*(axis.values for axis in axes)))
    kept = _without(points, excluded=settings.get(_EXCLUDE, []))
    if not kept:
        text = f"error: {_EXCLUDE} leaves none of the {len(points)} points\nhint: the same words with fewer exclusions"
        raise ConfigError(text)
    return Expansion(fixed=tuple(fixed), points=kept, num_excluded=len(points) - len(kept))


def _parse(word: str) -> Override | None:
    """None for a word that Hydra cannot read: composing says what is wrong with it, once."""
    try:
        return _PARSER.parse_overrides([word])[0]
    except HydraException:
        return None


def _axis(override: Override, *, options: Options) -> _Axis:
    name, key = override.key_or_group, override.get_key_element()
    value = override.value()
    if isinstance(value, IntervalSweep):
        raise ConfigError(
            f"error: {override.input_line} has no end of values, a sweep needs a list or a range\n"
            f"hint: {key}=range({value.start},{value.end})"
        )
    if isinstance(value, Glob):
        values = value.filter(list(options.get(name, ())))
    else:
        values = list(override.sweep_string_iterator())
    if not values:
        there = ", ".join(options.get(name, ())) or "none, it is no group"
        raise ConfigError(f"error: {override.input_line} names no value\n  options of {name}: {there}")
    return _Axis(keys=(name,), values=tuple((f"{key}={value}",) for value in values))


def _setting(override: Override) -> list[Any]:
    name, value = override.key_or_group, override.value()
    if name not in EXAMPLES:
        near = nearest(name, names=EXAMPLES)
        raise ConfigError(f"error: {name} is no setting of a sweep; there are {', '.join(near)}\nhint: {near[0]}=...")
    wanted = (dict,) if name in (_POINTS, _EXCLUDE) else (str, list)
    items: list[Any] = cast(Any, value) if isinstance(value, list) else []
    if not items or not all(type(item) in wanted and item for item in items):
        raise ConfigError(f"error: {override.input_line} cannot be read as a list\nhint: {EXAMPLES[name]}")
    return items


def _zipped(axes: Sequence[_Axis], *, groups: list[Any]) -> list[_Axis]:
    """The axes with those that are named together made one: first with first, second with second."""
    found = list(axes)
    for keys in groups if isinstance(next(iter(groups), None), list) else [groups] if groups else []:
        members = [axis for axis in found if axis.keys[0] in keys]
        missing = [key for key in keys if key not in [axis.keys[0] for axis in members]]
        lengths = {axis.keys[0]: len(axis.values) for axis in members}
        if missing:
            raise ConfigError(f"error: {_ZIP} names {missing[0]}, {_no_list(missing[0], axes=axes, groups=groups)}")
        if len(set(lengths.values())) > 1:
            text = ", ".join(f"{key} has {length} values" for key, length in lengths.items())
            raise ConfigError(f"error: {_ZIP} needs lists of one length: {text}\nhint: {_shortened(members)}")
        together = zip(*(axis.values for axis in members), strict=True)
        joined = _Axis(keys=tuple(lengths), values=tuple(tuple(itertools.chain(*words)) for words in together))
        found = [joined if axis is members[0] else axis for axis in found if axis not in members[1:]]
    return found


def _no_list(key: str, *, axes: Sequence[_Axis], groups: list[Any]) -> str:
    """Of a key that is near to one with a list that one was meant; any other wants a list."""
    near = next(iter(nearest(key, names=[axis.keys[0] for axis in axes])), "")
    hint = f"{key}=A,B"
    if nearness(key, name=near) >= NEAR:
        meant = re.sub(rf"(?<![\w.]){re.escape(key)}(?![\w.])", near, as_typed(groups))
        hint = shlex.quote(f"{_ZIP}={meant}")
    return f"which has no list of values\nhint: {hint}"


def _shortened(axes: Sequence[_Axis]) -> str:
    """The words of the axes that are longer than the shortest, cut to its length."""
    shortest = min(len(axis.values) for axis in axes)
    longer = [axis.values[:shortest] for axis in axes if len(axis.values) > shortest]
    keys = [values[0][0].partition("=")[0] for values in longer]
    lists = [",".join(words[0].partition("=")[2] for words in values) for values in longer]
    return " ".join(shlex.quote(f"{key}={values}") for key, values in zip(keys, lists, strict=True))


def _listed(entries: Sequence[dict[str, Any]]) -> _Axis:
    """An axis whose values are written out, each a mapping of what goes together."""
    values = tuple(tuple(f"{key}={Transformer.str(value)}" for key, value in entry.items()) for entry in entries)
    return _Axis(keys=tuple(dict.fromkeys(key for entry in entries for key in entry)), values=values)


def _refuse_two_homes(fixed: Sequence[str], *, axes: Sequence[_Axis]) -> None:
    """A key has one axis, or one value for all: of two, Hydra would silently take the later."""
    seen = [word.partition("=")[0].lstrip("+~") for word in fixed]
    for key in (key for axis in axes for key in axis.keys):
        if key.lstrip("+~") in seen:
            raise ConfigError(f"error: {key} is set twice in one sweep\n  why:    a point has one value of it")
        seen.append(key.lstrip("+~"))


def _without(points: tuple[Words, ...], *, excluded: Sequence[dict[str, Any]]) -> tuple[Words, ...]:
    """The points that no exclusion describes. Raises ConfigError for an exclusion that describes none: a slip."""
    kept = points
    for entry in excluded:
        words = {f"{key}={Transformer.str(value)}" for key, value in entry.items()}
        left = tuple(point for point in kept if not words <= {word.lstrip("+") for word in point})
        if len(left) == len(kept):
            text = f"error: {_EXCLUDE} names {' '.join(sorted(words))}, no point has that"
            raise ConfigError(f"{text}{_nearest_exclusion(words, points=kept)}")
        kept = left
    return kept


def _nearest_exclusion(words: Iterable[str], *, points: Sequence[Words]) -> str:
    """A hint with the entry that was meant: the nearest word to each, all of one point; nothing where none varies."""
    found = [[nearest(w, names=[p.lstrip("+") for p in point])[0] for w in words] for point in points if point]
    if not found:
        return ""
    best = max(found, key=lambda near: sum(nearness(w, name=n) for w, n in zip(words, near, strict=True)))
    entry = ",".join(":".join(word.split("=", 1)) for word in sorted(set(best)))
    return f"\nhint: {shlex.quote(f'{_EXCLUDE}=[{{{entry}}}]')}"

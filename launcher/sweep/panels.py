"""Geometry of a sweep's plot: a panel for each figure, a mark for each point that has it, over the points' numbers.

Owns coordinates, on the frame of `zero_kl.plot`; the template draws them as inline SVG.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launcher.sweep.results import GRAD_NORM, LOSS, MAX_DIFF, Result, figures_of
from zero_kl.plot import LEFT, RIGHT, WIDTH, colour, power_of_ten

HEIGHT, TOP, BOTTOM = 200, 12, 30
_FLOOR = HEIGHT - BOTTOM
_ZERO_BAND = 24
"""Height of the band at the foot of a logarithmic panel that holds the exact zeros."""

_GAP = 10
"""Pixels between the band and the smallest decade."""

_MAX_COLOURS = 8
_MAX_TICKS = 14


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A point's value. `says` is shown where the pointer rests on it."""

    x: float
    y: float
    colour: str
    says: str


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One figure. `band` is the upper edge of the band of zeros; None on a linear scale."""

    name: str
    marks: tuple[Mark, ...]
    ticks: tuple[tuple[float, str], ...]
    """(y, label)."""

    band: float | None
    num_not_finite: int
    """Points whose value is NaN or infinite: not drawn."""


@dataclass(frozen=True, kw_only=True)
class Plot:
    """All that the template draws. `legend` has (colour, word); empty where one colour serves."""

    panels: tuple[Panel, ...]
    radius: float
    """Of a mark, pixels: the more points, the smaller."""

    numbers: tuple[tuple[float, str], ...]
    legend: tuple[tuple[str, str], ...]


def plot(results: Sequence[Result]) -> Plot:
    """A panel for each figure that any point has; colours tell the values of the first key that varies.

    A point that was tried and has no figure leaves its place empty; pruned ones and duplicates have no place.
    """
    tried = [r for r in results if not r.point.reasons and r.point.twin is None]
    colours = _colours(tried)
    every = -(-len(tried) // _MAX_TICKS)
    return Plot(
        panels=tuple(_panel(name, results=tried, colours=colours) for name in figures_of(tried)),
        radius=max(2.0, min(4.5, 500 / max(len(tried), 1))),
        numbers=tuple((_x(i, of=len(tried)), str(tried[i].point.number)) for i in range(0, len(tried), every or 1)),
        legend=tuple((hue, word) for word, hue in colours.items()),
    )


def _colours(results: Sequence[Result]) -> dict[str, str]:
    """By first word, where there are at least two of them and few enough to tell apart."""
    words = list(dict.fromkeys(_first_word(r) for r in results if r.figures))
    return {word: colour(i) for i, word in enumerate(words)} if 1 < len(words) <= _MAX_COLOURS else {}


def _first_word(result: Result) -> str:
    return result.point.words[0] if len(result.point.words) > 1 else ""


def _panel(name: str, *, results: Sequence[Result], colours: Mapping[str, str]) -> Panel:
    found = [(i, r, r.figures[name]) for i, r in enumerate(results) if name in r.figures]
    drawn = [(i, r, value) for i, r, value in found if math.isfinite(value)]
    values = [value for _, _, value in drawn]
    scale = _Logarithmic(values) if name == MAX_DIFF else _Linear(values, from_zero=name not in (LOSS, GRAD_NORM))
    return Panel(
        name=name,
        marks=tuple(
            Mark(
                x=_x(i, of=len(results)),
                y=scale.y(value),
                colour=colours.get(_first_word(result), colour(0)),
                says=f"{result.point.number}: {result.point.name}: {name} {value:.6g} ({result.state})",
            )
            for i, result, value in drawn
        ),
        ticks=scale.ticks,
        band=_FLOOR - _ZERO_BAND if name == MAX_DIFF else None,
        num_not_finite=len(found) - len(drawn),
    )


def _x(index: int, *, of: int) -> float:
    return LEFT + (index + 0.5) / of * (WIDTH - LEFT - RIGHT)


class _Linear:
    """Round ticks around the values; from 0 on for a rate, so that lengths compare."""

    def __init__(self, values: Sequence[float], *, from_zero: bool) -> None:
        low, high = (min(values, default=0.0), max(values, default=0.0))
        low = min(low, 0.0) if from_zero else low
        step = _round_step((high - low) / 4 or abs(high) / 4 or 0.25)
        first, last = math.floor(low / step), math.ceil(high / step)
        last = max(last, first + 1)
        self._low, self._high = first * step, last * step
        decimals = max(0, -math.floor(math.log10(step)))
        self.ticks = tuple((self.y(n * step), f"{n * step:,.{decimals}f}") for n in range(first, last + 1))

    def y(self, value: float) -> float:
        return _FLOOR - (value - self._low) / (self._high - self._low) * (_FLOOR - TOP)


class _Logarithmic:
    """Whole decades above a band that holds the exact zeros: they are never lost among small values."""

    def __init__(self, values: Sequence[float]) -> None:
        sizes = [math.log10(value) for value in values if value]
        self._low = math.floor(min(sizes, default=-7.0))
        self._high = max(math.ceil(max(sizes, default=-1.0)), self._low + 1)
        every = -(-(self._high - self._low) // 4)
        decades = range(self._high, self._low - 1, -every)
        self.ticks = (
            *((self.y(10.0**decade), power_of_ten(decade)) for decade in decades),
            (self.y(0.0), "0"),
        )

    def y(self, value: float) -> float:
        if value == 0:
            return _FLOOR - _ZERO_BAND / 2
        foot = _FLOOR - _GAP - _ZERO_BAND
        return foot - (math.log10(value) - self._low) / (self._high - self._low) * (foot - TOP)


def _round_step(size: float) -> float:
    """The next of 1, 2, 5, 10, 20, ... that is at least `size`."""
    decade = 10.0 ** math.floor(math.log10(size))
    return next(factor * decade for factor in (1, 2, 5, 10) if factor * decade >= size * (1 - 1e-9))

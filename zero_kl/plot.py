"""Geometry of the page's plot: per-token delta against position in the response, on a symmetric log axis.

Owns coordinates; the template draws them as inline SVG, so the plot follows the page's colours and needs no plotting
library. Exact zeros have a band of their own around the zero line: they are never lost among small values.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from zero_kl.verdict import Deltas, Measurement

WIDTH, HEIGHT = 760, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 8, 8, 40
MIDDLE = (TOP + HEIGHT - BOTTOM) / 2
MAX_MARKS = 100_000
"""Marks of differing tokens on a page, about 1 MB. Tokens within a cell share a mark; cells grow until that holds."""

_SMALLEST, _LARGEST = -7, -1
"""Decades every plot shows, so that two pages compare at a glance."""

_FLOOR = -12
"""The axis goes no lower; a smaller delta is drawn at its end, still outside the zero band."""

_GAP = 4
"""Pixels between the band and the smallest delta."""

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, kw_only=True)
class Axis:
    """The symmetric log axis: decades `low` to `high` on both sides of a band that holds the exact zeros."""

    low: int
    high: int
    band: float
    """Half the height of the zero band, pixels."""

    def y(self, delta: float) -> float:
        """Where a finite delta of a token that differs is drawn: outside the band, also where only a sign differs."""
        decades = max(math.log10(abs(delta)), self.low) - self.low if delta else 0.0
        per_decade = (MIDDLE - TOP - self.band - _GAP) / (self.high - self.low)
        return MIDDLE - math.copysign(self.band + _GAP + decades * per_decade, delta)

    def snap(self, y: float, *, cell: int) -> float:
        """The edge of the cell that `y` is in; cells are counted from the band outwards, so none reaches into it."""
        outside = abs(y - MIDDLE) - self.band - _GAP
        return MIDDLE + math.copysign(self.band + _GAP + outside // cell * cell, y - MIDDLE)

    def zero_row(self, index: int, *, of: int) -> float:
        """The row of a step's exact zeros, within the band."""
        return MIDDLE + (index - (of - 1) / 2) * 2 * (self.band - 4) / of

    def ticks(self) -> list[tuple[float, str]]:
        """(y, label) at every second decade from the largest down, both signs."""
        decades = range(self.high, self.low, -2)
        up = [(self.y(10.0**d), power_of_ten(d)) for d in decades]
        return up + [(2 * MIDDLE - y, f"−{label}") for y, label in up]


@dataclass(frozen=True, kw_only=True)
class Series:
    """One step's marks as SVG path data; every mark is a zero-length line with round caps."""

    step: int | None
    colour: str
    zeros: tuple[tuple[float, str], ...]
    """(opacity, path): a mark on the zero line fades with the share of exact tokens at its position, in quarters."""

    differing: str
    size: float
    """Diameter of its marks, pixels: the more there are, the smaller."""

    num_exact: int
    num_differing: int
    num_not_finite: int
    """Differing tokens whose delta is NaN or infinite: not drawn."""


@dataclass(frozen=True, kw_only=True)
class Plot:
    """All that the template draws."""

    axis: Axis
    positions: tuple[tuple[float, str], ...]
    """(x, label) of the ticks of the position axis."""

    series: tuple[Series, ...]
    cell: int
    """Side of the square, in pixels, whose tokens share a mark."""


def plot(measurements: Sequence[Measurement]) -> Plot:
    """The plot of measurements that still have their deltas."""
    deltas = [m.deltas for m in measurements if m.deltas is not None]
    assert len(deltas) == len(measurements), "a report read back from report.json has no deltas to plot"
    length = max((max(len(d.exact), max(d.positions, default=0) + 1) for d in deltas), default=1)
    axis = _axis(deltas)
    cell, marks = _marks(deltas, axis=axis, length=length)
    every = 2 ** max(0, math.ceil(math.log2(length / 8)))
    return Plot(
        axis=axis,
        positions=tuple((_x(p, length=length), str(p)) for p in range(0, length, every)),
        series=tuple(
            Series(
                step=measurement.step,
                colour=colour(i),
                zeros=_zeros(deltas[i], y=axis.zero_row(i, of=len(deltas)), length=length),
                differing=_path(sorted(marks[i])),
                size=max(cell, 1.5, 4 - len(marks[i]) / 2_500),
                num_exact=sum(deltas[i].exact),
                num_differing=len(deltas[i].values),
                num_not_finite=sum(not math.isfinite(v) for v in deltas[i].values),
            )
            for i, measurement in enumerate(measurements)
        ),
        cell=cell,
    )


def colour(index: int) -> str:
    """A colour for one of several series, readable on light and dark paper: by the golden angle, no two share a hue."""
    return f"oklch(0.64 0.17 {(255 + 137.5 * index) % 360:g})"


def power_of_ten(exponent: int) -> str:
    """10⁻³"""
    return f"10{str(exponent).translate(_SUPERSCRIPT)}"


def _axis(deltas: Sequence[Deltas]) -> Axis:
    sizes = [math.log10(abs(v)) for d in deltas for v in d.values if v and math.isfinite(v)]
    low = max(_FLOOR, min(_SMALLEST, math.floor(min(sizes, default=_SMALLEST))))
    high = max(_LARGEST, math.ceil(max(sizes, default=_LARGEST)))
    return Axis(low=low, high=high, band=min(40, 8 + 4 * len(deltas)))


def _x(position: float, *, length: int) -> int:
    return round(LEFT + (position + 0.5) / length * (WIDTH - LEFT - RIGHT))


def _marks(deltas: Sequence[Deltas], *, axis: Axis, length: int) -> tuple[int, list[set[tuple[float, float]]]]:
    """The side of a cell, and each step's marks at that coarseness."""
    marks: list[set[tuple[float, float]]] = []
    for index, step in enumerate(deltas):
        shift = (index - (len(deltas) - 1) / 2) / (len(deltas) + 1)  # within a position, steps stand side by side
        pairs = zip(step.positions, step.values, strict=True)
        marks.append({(_x(p + shift, length=length), round(axis.y(v))) for p, v in pairs if math.isfinite(v)})
    cell = 1
    while sum(map(len, marks)) > MAX_MARKS:
        cell *= 2
        marks = [{(x // cell * cell, axis.snap(y, cell=cell)) for x, y in step} for step in marks]
    return cell, marks


def _zeros(deltas: Deltas, *, y: float, length: int) -> tuple[tuple[float, str], ...]:
    """One mark per pixel column that has an exact token, grouped by opacity."""
    exact: Counter[int] = Counter()
    for position, number in enumerate(deltas.exact):
        exact[_x(position, length=length)] += number
    tokens = exact + Counter(_x(p, length=length) for p in deltas.positions)
    groups: dict[float, list[tuple[int, float]]] = {}
    for x, number in sorted(exact.items()):
        if number:
            groups.setdefault(math.ceil(4 * number / tokens[x]) / 4, []).append((x, y))
    return tuple((opacity, _path(marks)) for opacity, marks in sorted(groups.items()))


def _path(marks: Sequence[tuple[float, float]]) -> str:
    return "".join(f"M{x:g} {y:g}h0" for x, y in marks)

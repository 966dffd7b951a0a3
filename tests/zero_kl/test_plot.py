import math
import re

import pytest

from tests.zero_kl.example_reports import ORDINARY, ZERO, report, responses
from zero_kl.measure import compare
from zero_kl.plot import HEIGHT, MIDDLE, WIDTH, Axis, Series, plot
from zero_kl.verdict import Deltas, Measurement, total

AXIS = Axis(low=-7, high=-1, band=20)


def measurement(values: list[float], *, exact: tuple[int, ...] = ()) -> Measurement:
    base = ORDINARY[0]
    deltas = Deltas(exact=exact, positions=tuple(range(len(values))), values=tuple(values))
    return Measurement(**{**vars(base), "deltas": deltas})


def marks(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"M([\d.]+) ([\d.]+)h0", path)]


def zero_marks(series: Series) -> list[tuple[float, float]]:
    return [mark for _, path in series.zeros for mark in marks(path)]


@pytest.mark.parametrize("delta", [1e-30, 1e-7, 3e-4, 1e-1])
def test_axis_is_symmetric_and_keeps_small_values_out_of_the_zero_band(delta: float) -> None:
    assert AXIS.y(delta) < MIDDLE - AXIS.band
    assert AXIS.y(-delta) == pytest.approx(2 * MIDDLE - AXIS.y(delta))


def test_axis_is_logarithmic() -> None:
    assert AXIS.y(1e-3) - AXIS.y(1e-2) == pytest.approx(AXIS.y(1e-6) - AXIS.y(1e-5))


def test_only_a_sign_that_differs_is_not_drawn_as_zero() -> None:
    assert abs(AXIS.y(0.0) - MIDDLE) > AXIS.band
    assert abs(AXIS.y(-0.0) - MIDDLE) > AXIS.band


def test_zeros_are_drawn_at_every_position_each_step_in_its_row() -> None:
    drawn = plot(ZERO)
    rows = [{y for _, y in zero_marks(s)} for s in drawn.series]
    assert [len(zero_marks(s)) for s in drawn.series] == [32, 32, 32]
    assert all(len(row) == 1 for row in rows) and len(set.union(*rows)) == 3
    assert all(abs(y - MIDDLE) < drawn.axis.band for row in rows for y in row)
    assert all(s.differing == "" for s in drawn.series)


def test_zero_marks_fade_with_the_share_of_exact_tokens() -> None:
    (series,) = plot([measurement([1e-3, 1e-3, 1e-3], exact=(1, 0, 99, 5))]).series
    assert [(opacity, len(marks(path))) for opacity, path in series.zeros] == [(0.5, 1), (1.0, 2)]


def test_every_differing_token_is_outside_the_band_and_on_the_canvas() -> None:
    drawn = plot(ORDINARY)
    for series in drawn.series:
        assert len(marks(series.differing)) > 300
        for x, y in marks(series.differing):
            assert abs(y - MIDDLE) > drawn.axis.band and 0 < x < WIDTH and 0 < y < HEIGHT


def test_nan_and_infinity_are_counted_not_drawn() -> None:
    (series,) = plot([measurement([1e-3, math.nan, math.inf])]).series
    assert (series.num_differing, series.num_not_finite, len(marks(series.differing))) == (3, 2, 1)


def test_cells_grow_and_no_token_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [compare(responses(s, num=100, length=64, noise=3e-2), step=s) for s in range(2)]
    fine = plot(many)
    monkeypatch.setattr("zero_kl.plot.MAX_MARKS", 1_000)
    coarse = plot(many)
    assert fine.cell == 1 and coarse.cell > 1
    assert sum(len(marks(s.differing)) for s in coarse.series) <= 1_000
    for before, after in zip(fine.series, coarse.series, strict=True):
        cells = marks(after.differing)
        assert all(abs(y - MIDDLE) > coarse.axis.band for _, y in cells)
        for x, y in marks(before.differing):
            assert any(0 <= x - a < coarse.cell and abs(y - b) < coarse.cell for a, b in cells)


def test_nothing_measured_is_an_empty_plot() -> None:
    assert plot([]).series == ()
    assert plot([compare([], step=0)]).series[0].zeros == ()


def test_a_total_has_no_deltas_to_plot() -> None:
    with pytest.raises(AssertionError, match="no deltas to plot"):
        plot([total(report(ZERO).measurements)])

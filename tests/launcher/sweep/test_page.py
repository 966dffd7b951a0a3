"""A sweep's page: whole, self-contained, with every point and a link to its run."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.sweep import panels
from launcher.sweep.page import render_page
from launcher.sweep.record import PointRecord, SweepRecord, read_sweep
from launcher.sweep.results import GENERATION, LOSS, MAX_DIFF, Result, read_results
from tests.launcher.sweep.test_results import REASON, a_sweep
from tests.zero_kl.test_report import text_of


def page_of(folder: Path) -> str:
    sweep = a_sweep(folder)
    return render_page(read_sweep(sweep), results=read_results(sweep), folder=sweep.root)


def results_of(name: str, *values: float, words: tuple[str, ...] = ()) -> list[Result]:
    return [
        Result(
            point=PointRecord(number=number, words=(*words, f"job.seed={number}"), state="submitted"),
            attempt=None,
            state="finished",
            exit_code=0,
            figures={name: value},
        )
        for number, value in enumerate(values, start=1)
    ]


def test_it_says_what_became_of_every_point(tmp_path: Path) -> None:
    text = text_of(page_of(tmp_path))
    for words in (
        "7 points",
        "2 finished, 1 failed, 1 not started, 1 duplicate, 2 pruned; 2 more excluded as asked",
        "All points have job=train.",
        "error: first failed (3)",
        "asks what 1 asks",
        "optimizer.lr=1e-4 parallelism=tp1 finished 1.250000",
        "Pruned before anything started 6 optimizer.lr=3e-4 parallelism=tp6, 7 optimizer.lr=1e-4 parallelism=tp7",
        re.sub(r"\s+", " ", REASON),
    ):
        assert words in text
    assert "verdict" not in text


def test_it_stands_alone_and_leads_to_the_runs(tmp_path: Path) -> None:
    page = page_of(tmp_path)
    assert not re.search(r"https?://|<script|@import|\bsrc=|url\(", page)
    links = re.findall(r'<a href="([^#"]+)"', page)
    assert len(links) == 4
    assert all((tmp_path / "sweeps" / "0123abcd" / link).exists() for link in links)


def test_words_are_escaped() -> None:
    record = SweepRecord(fixed=("job.name=<b>",), num_excluded=0, points=())
    page = render_page(record, results=results_of(LOSS, 1.0, 2.0, words=("a=<i>",)), folder=Path("/x"))
    assert "<b>" not in page
    assert "<i>" not in page


def test_exact_zeros_have_a_band_of_their_own() -> None:
    (panel,) = panels.plot(results_of(MAX_DIFF, 0.0, 1e-9, float("nan"), 0.3)).panels
    assert panel.band is not None
    ys = [mark.y for mark in panel.marks]
    assert ys[0] > panel.band > ys[1] > ys[2]
    assert panel.num_not_finite == 1
    assert [label for _, label in panel.ticks] == ["10⁰", "10⁻³", "10⁻⁶", "10⁻⁹", "0"]


@pytest.mark.parametrize(
    ("name", "values", "labels"),
    [
        (GENERATION, (384.0, 384.0), ["0", "100", "200", "300", "400"]),
        (LOSS, (2.0385, 2.3704), ["2.0", "2.1", "2.2", "2.3", "2.4"]),
        (LOSS, (7.0,), ["6", "8"]),
        (LOSS, (0.0, 0.0), ["0.0", "0.5"]),
        (LOSS, (-0.02, -0.01), ["-0.020", "-0.015", "-0.010"]),
    ],
)
def test_ticks_are_round_and_values_are_between_them(name: str, values: tuple[float, ...], labels: list[str]) -> None:
    (panel,) = panels.plot(results_of(name, *values)).panels
    assert [label for _, label in panel.ticks] == labels
    low, high = panel.ticks[0][0], panel.ticks[-1][0]
    assert all(high - 0.01 <= mark.y <= low + 0.01 for mark in panel.marks)


def test_pruned_points_and_duplicates_have_no_place_in_the_plots() -> None:
    """The marks are as far apart as they are without them, and each place has its own point's number."""
    first, second, third = results_of(LOSS, 1.0, 2.0, 3.0)
    pruned, twin = (replace(r.point, number=n) for r, n in ((first, 4), (second, 5)))
    others = [
        replace(first, point=replace(pruned, reasons=("x",)), figures={}),
        replace(second, point=replace(twin, twin=1), figures={}),
    ]
    plot = panels.plot([first, *others, second, third])
    assert [label for _, label in plot.numbers] == ["1", "2", "3"]
    assert [mark.x for mark in plot.panels[0].marks] == [x for x, _ in plot.numbers]
    assert plot == panels.plot([first, second, third])
    assert panels.plot(others).panels == ()


@pytest.mark.parametrize(("number", "colours"), [(1, 1), (3, 3), (9, 1)])
def test_colours_tell_the_first_key_apart(number: int, colours: int) -> None:
    results = [r for n in range(number) for r in results_of(LOSS, 1.0, 2.0, words=(f"parallelism=tp{n}",))]
    plot = panels.plot(results)
    assert len({mark.colour for mark in plot.panels[0].marks}) == colours
    assert len(plot.legend) == (colours if colours > 1 else 0)

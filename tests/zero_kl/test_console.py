import dataclasses
import subprocess
import sys

import pytest
from rich.console import Console, RenderableType

from tests.zero_kl.example_reports import ORDINARY, ZERO, report
from zero_kl.console import render, side_by_side
from zero_kl.verdict import Report


def printed(renderable: RenderableType) -> list[str]:
    console = Console(width=80, color_system=None)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get().splitlines()


def large() -> Report:
    measured = [dataclasses.replace(m, n=9_999_999, n_exact=9_999_998, k1=-1.25e-4) for m in ORDINARY]
    return report(measured, required=True)


@pytest.mark.parametrize(
    "made", [report(ZERO), report(ORDINARY), large(), report([])], ids=["zero", "not", "large", "empty"]
)
def test_fits_80_columns_whole(made: Report) -> None:
    lines = printed(render(made))
    assert max(map(len, lines)) <= 80
    assert "…" not in "\n".join(lines)


def test_verdict_comes_first() -> None:
    assert printed(render(report(ZERO)))[0].split()[:4] == ["ZERO", "all", "2,304", "log-probabilities"]
    assert printed(render(report(ORDINARY)))[0].startswith(" NOT ZERO ")


def test_figures_of_each_step_and_of_all() -> None:
    rows = [line.split() for line in printed(render(report(ZERO)))]
    assert ["2", "768", "768", "100", "0", "0", "0", "0", "0"] in rows
    assert ["all", "2,304", "2,304", "100", "0", "0", "0", "0", "0"] in rows
    assert ["all", "384", "6,144", "–"] in rows


def test_first_mismatch() -> None:
    first = ORDINARY[1].first_mismatch
    assert first is not None
    rows = [line.split() for line in printed(render(report(ORDINARY)))]
    place = [
        first.step,
        first.request,
        first.position,
        first.absolute_position,
        first.token,
        first.sequence_length_mod_64,
    ]
    assert [*map(str, place), f"{first.generation:.9g}", f"{first.training:.9g}"] in rows
    assert "First mismatch: none." in printed(render(report(ZERO)))


@pytest.mark.parametrize("number", [2, 3])
def test_side_by_side(number: int) -> None:
    lines = printed(side_by_side([report(ZERO, required=True), report(ORDINARY), report(ORDINARY)][:number]))
    assert max(map(len, lines)) <= 80
    cells = [line.split() for line in lines]
    assert ["verdict", "ZERO", *["NOT", "ZERO"] * (number - 1)] in cells
    assert ["mode", "cpu_reference", *["none"] * (number - 1)] in cells
    assert ["tokens", *["2,304"] * number] in cells


def test_needs_neither_torch_nor_numpy() -> None:
    code = "import sys, zero_kl.console; print({'torch', 'numpy', 'jinja2'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"

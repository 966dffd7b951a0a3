"""What stands beside a verdict, in report.json, in the terminal and on the page; none of it changes the verdict."""

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.zero_kl.example_reports import ORDINARY, ZERO, report
from zero_kl import figures
from zero_kl.console import render
from zero_kl.evidence import Claim, Difference, Search
from zero_kl.report import render_page, write_report
from zero_kl.verdict import Report, read_report

FOUND = Search(
    step=1,
    found=Difference(
        point="layer 3, self_attention.core_attention",
        positions=(17, 18),
        num_differing=1005,
        num_compared=2000,
        max_abs_diff=1.5e-5,
        against="generation",
        request=3,
        num_requests=2,
        prompt_tokens=18,
        new_tokens=1,
    ),
)
NOTHING = Search(says="not searched: the layers are spread over pipeline stages")
CLAIMS = (
    Claim(name="score == score", sweep="reversed order", n=12_345, n_exact=12_345),
    Claim(name="engine decode == score", sweep="one at a time", n=200, n_exact=199),
)

SENTENCE = "First difference: layer 3, self_attention.core_attention, rows 17, 18, … (1,005 of 2,000), max |Δ| 1.5e-5."
CASE = "after 1 optimizer steps, request 3 with 1 other, 18 tokens given, 1 sampled."


def _with_evidence(search: Search) -> Report:
    return replace(report(ORDINARY), search=search, claims=CLAIMS)


@pytest.mark.parametrize("search", [FOUND, NOTHING, Search(says="nothing differed")])
def test_it_comes_back_from_the_file(search: Search, tmp_path: Path) -> None:
    made = _with_evidence(search)
    write_report(made, folder=tmp_path)
    read = read_report(tmp_path / "report.json")
    assert (read.search, read.claims) == (search, CLAIMS)


def test_nothing_to_say_is_not_said() -> None:
    text = _printed(report(ZERO))
    assert "First difference" not in text
    assert "Claims" not in text
    assert "<h2>First difference</h2>" not in render_page(report(ZERO))


def _printed(shown: Report) -> str:
    console = Console(width=200)
    with console.capture() as printed:
        console.print(render(shown))
    return printed.get()


def test_the_terminal_says_where_and_in_which_case() -> None:
    text = _printed(_with_evidence(FOUND))
    assert SENTENCE in text
    assert CASE in text
    assert "Claims: 1 of 2 sweeps hold." in text
    assert "engine decode == score  one at a time      200     199  99.50" in text


def test_the_page_says_the_same() -> None:
    page = render_page(_with_evidence(FOUND))
    assert SENTENCE in page
    assert CASE in page
    assert "<td>engine decode == score</td>" in page
    assert "First difference: not searched: the layers are spread over pipeline stages." in render_page(
        _with_evidence(NOTHING)
    )


def test_a_claim_over_nothing_does_not_hold() -> None:
    assert not Claim(name="score == score", sweep="one at a time", n=0, n_exact=0).holds
    assert figures.claims_sentence(()) == "not checked (job.claims=true checks them)"


def test_claims_are_no_part_of_the_verdict() -> None:
    assert replace(report(ZERO), claims=CLAIMS).is_zero

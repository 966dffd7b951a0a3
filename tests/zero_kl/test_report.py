import html.parser
import re
from pathlib import Path

import pytest

from tests.zero_kl.example_reports import ORDINARY, ZERO, report, responses
from zero_kl.measure import compare
from zero_kl.report import render_page, write_report
from zero_kl.verdict import Report, read_report

VOID = {"meta", "link", "br", "path", "rect"}


class Tags(html.parser.HTMLParser):
    """Checks that elements close in order, and keeps the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in VOID

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data


def text_of(page: str) -> str:
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    return re.sub(r"\s+", " ", tags.text)


def test_both_files_are_written_and_read_back(tmp_path: Path) -> None:
    made = report(ORDINARY)
    write_report(made, folder=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"report.html", "report.json"}
    assert read_report(tmp_path / "report.json") == made


def test_a_page_that_cannot_be_written_leaves_nothing_to_trust(tmp_path: Path) -> None:
    (tmp_path / "report.html").mkdir()
    with pytest.raises(OSError):
        write_report(report(ZERO), folder=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.parametrize(
    "made", [report(ZERO, required=True), report(ORDINARY), report([])], ids=["zero", "not", "empty"]
)
def test_page_stands_alone(made: Report) -> None:
    page = render_page(made)
    assert not re.search(r"https?://|<script|@import|\bsrc=|url\(", page)


def test_page_says_the_verdict_first_and_every_figure() -> None:
    text = text_of(render_page(report(ORDINARY)))
    first = ORDINARY[0].first_mismatch
    assert first is not None
    assert text.lstrip().startswith("NOT ZERO · tiny NOT ZERO")
    for figure in (
        "k1",
        "768",
        "Says nothing about GPU kernels",
        f"{first.training:.9g}",
        "transformer-engine",
        "41.0 s",
    ):
        assert figure in text
    assert (
        "python -m launcher +preset=zero_kl_cpu 'model.hf_config_overrides={num_hidden_layers: 4}' force=true" in text
    )


@pytest.mark.parametrize(
    ("made", "state"),
    [(report(ZERO), "zero"), (report(ORDINARY), "measured"), (report(ORDINARY, required=True), "failed")],
    ids=["zero", "measured", "failed"],
)
def test_colour_follows_verdict_and_requirement(made: Report, state: str) -> None:
    assert f'data-verdict="{state}"' in render_page(made)


def test_configuration_is_shown_as_text() -> None:
    page = render_page(report(ZERO, config_yaml="name: <b>&amp;</b>"))
    assert "name: &lt;b&gt;&amp;amp;&lt;/b&gt;" in page


def test_page_of_a_large_run_stays_small() -> None:
    large = [compare(responses(s, num=400, length=256, noise=3e-2), step=s) for s in range(3)]
    assert sum(m.n for m in large) > 300_000
    assert len(render_page(report(large)).encode()) < 2_000_000

"""Writes a finished report: `report.json` and a self-contained `report.html` (no script, no network).

Owns the page; its template is `report.html.jinja`. Figures come from `zero_kl.verdict`, words from `zero_kl.figures`.
"""

from pathlib import Path

import jinja2

from launcher.files import write_json, write_text
from zero_kl import figures, plot
from zero_kl.verdict import Report, report_data

_WORDS = (
    figures.count,
    figures.percent,
    figures.scientific,
    figures.rate,
    figures.seconds,
    figures.moment,
    figures.elapsed,
    figures.verdict_sentence,
    figures.requirement_sentence,
    figures.fp32,
    figures.search_sentence,
    figures.case_sentence,
    figures.claims_sentence,
)


def write_report(report: Report, *, folder: Path) -> None:
    """Write both files into an existing folder. report.json comes last, whole or not at all: it is what is trusted."""
    write_text(folder / "report.html", text=render_page(report))
    write_json(folder / "report.json", data=report_data(report))


def render_page(report: Report) -> str:
    """The page as HTML text; the measurements must still have their deltas."""
    environment = page_environment(Path(__file__).parent)
    environment.globals.update({word.__name__: word for word in _WORDS})
    return environment.get_template("report.html.jinja").render(
        report=report,
        claim=figures.CLAIMS[report.platform],
        plot=plot.plot(report.measurements),
        frame=plot,
        longest_s=max(report.stages_s.values(), default=0.0) or 1.0,
    )


def page_environment(folder: Path) -> jinja2.Environment:
    """For the templates in a folder; `style.css.jinja`, the look of all pages, is there too. Unknown names raise."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, Path(__file__).parent]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )

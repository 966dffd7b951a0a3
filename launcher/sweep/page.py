"""Writes a sweep's page beside its record: self-contained, no script, no network; links lead to the runs' own pages.

Owns the page; its template is `sweep.html.jinja`, its look is `zero_kl.report`'s.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from launcher.files import write_text
from launcher.paths import SweepPaths
from launcher.sweep import panels
from launcher.sweep.record import SweepRecord, read_sweep
from launcher.sweep.results import GRAD_NORM, LOSS, MAX_DIFF, Result, figures_of
from zero_kl import figures
from zero_kl.report import page_environment


def write_page(sweep: SweepPaths, *, results: Sequence[Result]) -> None:
    """Write or refresh the page. Raises OSError."""
    write_text(sweep.page, text=render_page(read_sweep(sweep), results=results, folder=sweep.root))


def render_page(record: SweepRecord, *, results: Sequence[Result], folder: Path) -> str:
    """The page as HTML text, for a file in `folder`."""
    pruned: dict[str, list[Result]] = {}
    for result in results:
        if result.point.reasons:
            pruned.setdefault("\n".join(result.point.reasons), []).append(result)

    def link(result: Result) -> str:
        return _link(result, folder=folder)

    template = page_environment(Path(__file__).parent).get_template("sweep.html.jinja")
    return template.render(
        record=record,
        title=f"{len(record.points)} points",
        sentence=_sentence(results),
        verdict=_verdict(results),
        tried=[r for r in results if not r.point.reasons],
        pruned=pruned,
        has_verdicts=any(r.verdict for r in results),
        names=figures_of(results),
        plot=panels.plot(results),
        frame=panels,
        number=_number,
        link=link,
    )


def _sentence(results: Sequence[Result]) -> str:
    """How many are in each state, in the order of their first."""
    counted: dict[str, int] = {}
    for result in results:
        counted[result.state] = counted.get(result.state, 0) + 1
    return ", ".join(f"{count} {state}" for state, count in counted.items())


def _verdict(results: Sequence[Result]) -> str:
    """The page's colour: failed where any point failed, zero where all that ran are, measured otherwise."""
    if any(result.exit_code for result in results):
        return "failed"
    verdicts = {result.verdict for result in results if result.exit_code is not None}
    return "zero" if verdicts == {"ZERO"} else "measured"


def _number(name: str, value: float) -> str:
    """A figure in a cell."""
    if name == MAX_DIFF:
        return figures.scientific(value)
    return {LOSS: f"{value:.6f}", GRAD_NORM: f"{value:.4g}"}.get(name) or figures.rate(value)


def _link(result: Result, *, folder: Path) -> str:
    """From the sweep's page to the run's own, or to its folder where it has none."""
    if result.attempt is None:
        return ""
    target = result.attempt.page if result.attempt.page.exists() else result.attempt.root
    return Path(os.path.relpath(target.absolute(), folder.absolute())).as_posix()

"""A report in the terminal: one report whole, or several as columns.

Owns the layout of the tables, within 80 columns. Reads `zero_kl.verdict` only: no torch, no numpy.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from rich.box import SIMPLE
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from zero_kl import figures
from zero_kl.verdict import Measurement, Report, Throughput


def render(report: Report) -> RenderableType:
    """The verdict, what it proves, and the page's figures."""
    circumstances = f"{report.model}, {figures.count(report.num_parameters)} parameters · {report.layout}"
    stages = " · ".join(f"{stage} {figures.seconds(time)}" for stage, time in report.stages_s.items())
    return Group(
        Text.assemble(_verdict(report), " ", (figures.verdict_sentence(report), "bold")),
        Text(f"platform {report.platform.value}, mode {report.mode.value}. {figures.requirement_sentence(report)}"),
        Text(figures.CLAIMS[report.platform], style="dim"),
        Text(circumstances),
        Text(),
        _equality(report),
        Text(),
        _speed(report),
        Text(),
        _first_mismatches(report),
        *_search(report),
        *_claims(report),
        Text(),
        Text(f"{stages} · in all {figures.elapsed(report)}", style="dim"),
    )


def _verdict(report: Report) -> Text:
    colour = "green" if report.is_zero else "red" if report.required else "yellow"
    return Text(f" {report.verdict} ", style=f"bold reverse {colour}")


def _table(*headers: str) -> Table:
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for header in headers:
        table.add_column(header, justify="right", no_wrap=True)
    return table


def _equality(report: Report) -> Table:
    table = _table("step", "tokens", "exact", "%", "max |Δ|", "mean |Δ|", "k1", "k2", "k3")
    for m in report.measurements:
        table.add_row(str(m.step), *_equality_cells(m))
    table.add_section()
    table.add_row("all", *_equality_cells(report.total), style="bold")
    return table


def _equality_cells(m: Measurement) -> list[str]:
    estimates = (m.max_abs_diff, m.mean_abs_diff, m.k1, m.k2, m.k3)
    counts = [figures.count(m.n), figures.count(m.n_exact), figures.percent(m.n_exact, of=m.n)]
    return counts + [figures.scientific(v) for v in estimates]


def _speed(report: Report) -> Table:
    table = _table("step", "generation tokens/s", "training tokens/s", "update tokens/s")
    for t in report.throughput:
        table.add_row(str(t.step), *_speed_cells(t))
    table.add_section()
    table.add_row("all", *_speed_cells(report.total_throughput), style="bold")
    return table


def _speed_cells(t: Throughput) -> list[str]:
    rates = (t.generation_tokens_per_s, t.training_tokens_per_s, t.update_tokens_per_s)
    return [figures.rate(rate) for rate in rates]


def _first_mismatches(report: Report) -> RenderableType:
    """One row per step that has one. "position" is in the response, "sequence" in prompt and response."""
    if report.total.first_mismatch is None:
        return Text("First mismatch: none.")
    table = _table("step", "request", "position", "sequence", "token", "mod 64", "generation", "training")
    for f in (m.first_mismatch for m in report.measurements):
        if f is not None:
            integers = (f.step, f.request, f.position, f.absolute_position, f.token, f.sequence_length_mod_64)
            table.add_row(*map(str, integers), figures.fp32(f.generation), figures.fp32(f.training))
    return Group(Text("First mismatch of each step (mod 64: the length of its sequence):"), table)


def _search(report: Report) -> list[RenderableType]:
    if report.search is None:
        return []
    lines = (figures.search_sentence(report.search), figures.case_sentence(report.search))
    return [Text(), *(Text(line) for line in lines if line)]


def _claims(report: Report) -> list[RenderableType]:
    if not report.claims:
        return []
    table = _table("claim", "sweep", "tokens", "exact", "%")
    for column in table.columns[:2]:
        column.justify = "left"
    for c in report.claims:
        style = None if c.holds else "bold"
        table.add_row(
            c.name,
            c.sweep,
            figures.count(c.n),
            figures.count(c.n_exact),
            figures.percent(c.n_exact, of=c.n),
            style=style,
        )
    return [Text(), Text(f"Claims: {figures.claims_sentence(report.claims)}."), table]


_ROWS: tuple[tuple[str, Callable[[Report], str | Text]], ...] = (
    ("verdict", _verdict),
    ("zero required", lambda r: "yes" if r.required else "no"),
    ("platform", lambda r: r.platform.value),
    ("mode", lambda r: r.mode.value),
    ("model", lambda r: r.model),
    ("layout", lambda r: r.layout),
    ("measurements", lambda r: str(len(r.measurements))),
    ("tokens", lambda r: figures.count(r.total.n)),
    ("exact", lambda r: figures.count(r.total.n_exact)),
    ("%", lambda r: figures.percent(r.total.n_exact, of=r.total.n)),
    ("max |Δ|", lambda r: figures.scientific(r.total.max_abs_diff)),
    ("k3", lambda r: figures.scientific(r.total.k3)),
    ("generation tok/s", lambda r: figures.rate(r.total_throughput.generation_tokens_per_s)),
    ("training tok/s", lambda r: figures.rate(r.total_throughput.training_tokens_per_s)),
    ("update tok/s", lambda r: figures.rate(r.total_throughput.update_tokens_per_s)),
)


def side_by_side(reports: Sequence[Report]) -> RenderableType:
    """One column per report, totals over its steps; the header is the run's folder."""
    table = Table(box=SIMPLE, padding=(0, 1), pad_edge=False, show_edge=False)
    table.add_column("", style="dim", no_wrap=True)
    for report in reports:
        table.add_column("\n".join(Path(report.run_folder).parts[-2:]), justify="right", overflow="fold")
    for name, cell in _ROWS:
        table.add_row(name, *(cell(report) for report in reports))
    return table

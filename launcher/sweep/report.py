"""The verb `report` for a sweep: its table in the terminal, its page beside its record."""

from __future__ import annotations

from rich.console import Console

from launcher.errors import ExitCode
from launcher.paths import SweepPaths
from launcher.sweep.page import write_page
from launcher.sweep.record import attempt_of, read_sweep
from launcher.sweep.results import read_results, render_notes, render_results, worst


def show_sweep(sweep: SweepPaths, *, console: Console) -> ExitCode:
    """Print how the points are doing or ended, and refresh the page; the worst exit code of those that ended."""
    results = read_results(sweep)
    console.print(render_results(results))
    if notes := render_notes(results):
        console.print(f"\n{notes}", markup=False, highlight=False, soft_wrap=True)
    write_page(sweep, results=results)
    console.print(f"page: {sweep.page}", markup=False, highlight=False, soft_wrap=True)
    return worst(results)


def write_last_page(sweep: SweepPaths) -> None:
    """Write the page where every point has ended, and nothing where one has not: the last job of a sweep does it.

    Before the launcher has recorded the points there is nothing either. Raises OSError.
    """
    if not sweep.points.exists():
        return
    attempts = [attempt_of(point, sweep=sweep) for point in read_sweep(sweep).points]
    if all(attempt.outcome.exists() for attempt in attempts if attempt is not None):
        write_page(sweep, results=read_results(sweep))

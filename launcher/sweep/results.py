"""How the points of a sweep ended, as a table of 80 columns and one exit code: the worst."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from launcher.errors import ExitCode
from launcher.outcome import read_outcome
from launcher.paths import AttemptPaths
from launcher.slurm.finish import verdict_code
from launcher.steps import read_steps
from zero_kl.verdict import read_report

_HEAD = "   # STATE     VERDICT   EXACT OR LOSS        POINT"


@dataclass(frozen=True, kw_only=True)
class Result:
    """One point's end. `verdict` and `figure` are empty for a job without them, and for a run that failed."""

    number: int
    name: str
    state: str
    exit_code: int
    verdict: str
    figure: str
    """n_exact/n over all measurements, or the loss of the last step."""

    folder: str


def read_result(attempt: AttemptPaths, *, number: int, name: str) -> Result:
    """The result of an attempt; without an outcome its state is "open" and its exit code the experiment's failure."""
    outcome = read_outcome(attempt)
    state, code = ("open", ExitCode.EXPERIMENT) if outcome is None else (outcome.state, ExitCode(outcome.exit_code))
    verdict, figure = _figures(attempt) if state == "finished" else ("", "")
    return Result(
        number=number,
        name=name,
        state=state,
        exit_code=int(verdict_code(attempt) if state == "finished" else code),
        verdict=verdict,
        figure=figure,
        folder=str(attempt.root),
    )


def _figures(attempt: AttemptPaths) -> tuple[str, str]:
    if attempt.report.exists():
        report = read_report(attempt.report)
        return report.verdict.value, f"{report.total.n_exact:,}/{report.total.n:,}"
    steps = read_steps(attempt.steps)
    return "", f"loss {steps[-1].loss:.6g}" if steps else ""


def worst(results: Iterable[Result]) -> ExitCode:
    """The largest exit code; fine where nothing ran."""
    return ExitCode(max((result.exit_code for result in results), default=ExitCode.OK))


def render_results(results: Sequence[Result]) -> str:
    """A row each, then where the failed ones are."""
    rows = [_row(result) for result in results]
    failed = [f"{r.number}: exit code {r.exit_code}, {r.folder}" for r in results if r.exit_code]
    return "\n".join([_HEAD, *rows, *([""] if failed else []), *failed])


def _row(result: Result) -> str:
    prefix = f"{result.number:4d} {result.state:9s} {result.verdict:9s} {result.figure:20s} "
    return textwrap.fill(
        result.name,
        width=80,
        initial_indent=prefix,
        subsequent_indent=" " * len(prefix),
        break_long_words=False,
        break_on_hyphens=False,
    )

"""How the points of a sweep are doing or ended: read from their attempts, as a table of 80 columns and an exit code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rich.box import SIMPLE
from rich.table import Table

from launcher.errors import ExitCode
from launcher.outcome import Outcome, read_outcome
from launcher.paths import AttemptPaths, SweepPaths
from launcher.records import first_event
from launcher.slurm.finish import verdict_code
from launcher.status import Row, rows_of
from launcher.steps import StepRecord, read_steps
from launcher.sweep.record import PointRecord, attempt_of, read_sweep
from zero_kl.verdict import read_report

MAX_DIFF, GENERATION, TRAINING, LOSS, GRAD_NORM, STEP_RATE = (
    "max |Δ|",
    "generation tok/s",
    "training tok/s",
    "loss",
    "grad norm",
    "tok/s",
)
"""Figures of a point: of all measurements of job=mismatch, or of the last step of job=train."""

_SHOWN = {"loss": (".6f", LOSS), "grad norm": (".4g", GRAD_NORM), "tok/s": (",.0f", GENERATION, STEP_RATE)}
"""Columns that the terminal has room for: how a figure is written, and which figures they show."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """One point: the record, and what its attempt came to."""

    point: PointRecord
    attempt: AttemptPaths | None
    state: str
    """Of its attempt as `status` says it; pruned or duplicate without one."""

    exit_code: int | None
    """None where it has not ended, and without an attempt."""

    note: str = ""
    """The first line of an error; or the last step of one that was ended between steps."""

    verdict: str = ""
    exact: str = ""
    """n_exact/n over all measurements; empty for a job without a verdict, like the verdict."""

    figures: Mapping[str, float] = field(default_factory=dict[str, float])
    seconds: float | None = None
    """From rank 0's first sign to the outcome: without the time in the queue and the import of Megatron."""


def read_results(sweep: SweepPaths) -> list[Result]:
    """All points of a sweep that has a record. Raises SubmissionError where Slurm must be asked and gives no answer."""
    record = read_sweep(sweep)
    attempts = {point.number: a for point in record.points if (a := attempt_of(point, sweep=sweep)) is not None}
    rows = dict(zip(attempts, rows_of(list(attempts.values())), strict=True))
    return [
        _result(point, attempt=attempts[point.number], row=rows[point.number])
        if point.number in attempts
        else Result(point=point, attempt=None, state=point.state, exit_code=None)
        for point in record.points
    ]


def _result(point: PointRecord, *, attempt: AttemptPaths, row: Row) -> Result:
    outcome = read_outcome(attempt)
    if outcome is None:
        return Result(point=point, attempt=attempt, state=row.state, exit_code=None, note=row.detail)
    seconds = _seconds(attempt, outcome=outcome)
    steps = read_steps(attempt.steps)
    if outcome.state != "finished":
        return Result(
            point=point,
            attempt=attempt,
            state=outcome.state,
            exit_code=outcome.exit_code,
            note=row.detail or (f"its last step was {steps[-1].step}" if steps else ""),
            figures=_figures_of_training(steps),
            seconds=seconds,
        )
    verdict, exact, figures = _figures_of_report(attempt)
    return Result(
        point=point,
        attempt=attempt,
        state=outcome.state,
        exit_code=int(verdict_code(attempt)),
        verdict=verdict,
        exact=exact,
        figures=figures or _figures_of_training(steps),
        seconds=seconds,
    )


def _seconds(attempt: AttemptPaths, *, outcome: Outcome) -> float | None:
    first = first_event(attempt.progress)
    return None if first is None else outcome.time - first.time


def _figures_of_report(attempt: AttemptPaths) -> tuple[str, str, dict[str, float]]:
    """Verdict, n_exact/n and figures; of a job without a report nothing."""
    if not attempt.report.exists():
        return "", "", {}
    report = read_report(attempt.report)
    whole, rates = report.total, report.total_throughput
    figures = {
        MAX_DIFF: whole.max_abs_diff,
        GENERATION: rates.generation_tokens_per_s,
        TRAINING: rates.training_tokens_per_s,
    }
    return report.verdict.value, f"{whole.n_exact:,}/{whole.n:,}", figures


def _figures_of_training(steps: Sequence[StepRecord]) -> dict[str, float]:
    """Those of the last step there is; of a job without steps nothing."""
    if not steps:
        return {}
    last = steps[-1]
    return {LOSS: last.loss, GRAD_NORM: last.grad_norm, STEP_RATE: last.num_tokens / last.seconds}


def worst(results: Iterable[Result]) -> ExitCode:
    """The largest exit code of the points that ended; fine where none did."""
    return ExitCode(max((r.exit_code for r in results if r.exit_code is not None), default=ExitCode.OK))


def figures_of(results: Iterable[Result]) -> list[str]:
    """The names of the figures that any point has."""
    return list(dict.fromkeys(name for result in results for name in result.figures))


def render_results(results: Sequence[Result]) -> Table:
    """A row for each point; columns that would be empty are left out."""
    table = Table(box=SIMPLE, padding=(0, 0), pad_edge=False, show_edge=False)
    columns = [(name, cells) for name, cells in _columns(results).items() if any(cells)]
    for name, _ in columns:
        is_text = name in ("state", "verdict", "point")
        table.add_column(name, justify="left" if is_text else "right", no_wrap=name != "point", overflow="fold")
    for row in zip(*(cells for _, cells in columns), strict=True):
        table.add_row(*row)
    return table


def _columns(results: Sequence[Result]) -> dict[str, list[str]]:
    return {
        "#": [str(r.point.number) for r in results],
        "state": [r.state for r in results],
        "verdict": [r.verdict for r in results],
        "exact": [r.exact for r in results],
        **{column: [_shown(r, names=names, form=form) for r in results] for column, (form, *names) in _SHOWN.items()},
        "s": ["" if r.seconds is None else f"{r.seconds:,.0f}" for r in results],
        "GPUs": [str(r.point.num_gpus or "") for r in results],
        "point": [r.point.name for r in results],
    }


def _shown(result: Result, *, names: Sequence[str], form: str) -> str:
    """The figure of these names that the result has; a point has one of them at most."""
    return "".join(format(result.figures[name], form) for name in names if name in result.figures)


def render_notes(results: Sequence[Result]) -> str:
    """Below the table: why points failed and where they are, and why points did not run."""
    notes: list[str] = []
    for result in results:
        if result.exit_code and result.attempt is not None:
            notes.append(
                f"{result.point.number}: exit code {result.exit_code}; {result.note}\n    {result.attempt.root}"
            )
        if result.point.twin:
            notes.append(f"{result.point.number}: asks what {result.point.twin} asks")
    pruned: dict[str, list[str]] = {}
    for result in results:
        for reason in result.point.reasons:
            pruned.setdefault(reason.splitlines()[0], []).append(str(result.point.number))
    return "\n".join([*notes, *(f"{', '.join(numbers)}: {reason}" for reason, numbers in pruned.items())])

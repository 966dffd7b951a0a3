"""What each optimizer step of a training job came to: written by rank 0 as it happens, read by whoever shows it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.box import SIMPLE
from rich.table import Table

from launcher.files import write_text

_SHOWN = 6


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """One optimizer step, over all ranks. Losses are in nats per token, before the step's update, and exact: a float
    in JSON reads back to the same bits."""

    step: int
    """Counted from 1."""

    loss: float
    """What was minimised."""

    terms: dict[str, float]
    """Its terms, by name, unweighted."""

    value_loss: float | None
    """The value model's mean squared error, before its update; None without one."""

    grad_norm: float
    lr: float
    num_tokens: int
    seconds: float


def append_step(path: Path, *, record: StepRecord) -> None:
    """Add one line."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(record)) + "\n")


def read_steps(path: Path) -> list[StepRecord]:
    """All steps there are, in whole lines; empty where there is no file."""
    if not path.exists():
        return []
    return [StepRecord(**json.loads(line)) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def write_steps(path: Path, *, records: Sequence[StepRecord]) -> None:
    """Replace the file by these steps."""
    write_text(path, text="".join(json.dumps(asdict(record)) + "\n" for record in records))


def render_steps(records: Sequence[StepRecord]) -> Table:
    """The first and the last steps as a table, within 80 columns."""
    table = Table(box=SIMPLE, padding=(0, 0), pad_edge=False, show_edge=False)
    for name in _cells(records[0]):
        table.add_column(name, justify="right", no_wrap=True)
    hidden = len(records) - 2 * _SHOWN
    for record in records[:_SHOWN] if hidden > 0 else records:
        table.add_row(*_cells(record).values())
    if hidden > 0:
        table.add_section()
        for record in records[-_SHOWN:]:
            table.add_row(*_cells(record).values())
    return table


def _cells(record: StepRecord) -> dict[str, str]:
    """By column. The terms of the loss where it has more than one; fewer decimals then and no tokens, for the width."""
    terms = record.terms if len(record.terms) > 1 else {}
    if record.value_loss is not None:
        terms = {**terms, "value": record.value_loss}
    decimals = 4 if terms else 6
    return {
        "step": str(record.step),
        "loss": f"{record.loss:.{decimals}f}",
        **{name: f"{value:.{decimals}f}" for name, value in terms.items()},
        "grad norm": f"{record.grad_norm:.4g}",
        "lr": f"{record.lr:.1e}",
        **({} if terms else {"tokens": f"{record.num_tokens:,}"}),
        "tok/s": f"{record.num_tokens / record.seconds:,.0f}",
    }

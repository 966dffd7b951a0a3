"""What each optimizer step of a training job came to: written by rank 0 as it happens, read by whoever shows it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.box import SIMPLE
from rich.table import Table

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
    """All steps there are; empty where there is no file."""
    if not path.exists():
        return []
    return [StepRecord(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def render_steps(records: Sequence[StepRecord]) -> Table:
    """The first and the last steps as a table, within 80 columns."""
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    names = _names(records)
    values = ["value loss"] if records and records[0].value_loss is not None else []
    for header in ("step", "loss", *names, *values, "grad norm", "lr", "tokens", "tok/s"):
        table.add_column(header, justify="right", no_wrap=True)
    hidden = len(records) - 2 * _SHOWN
    for record in records[:_SHOWN] if hidden > 0 else records:
        table.add_row(*_cells(record, names=names))
    if hidden > 0:
        table.add_section()
        for record in records[-_SHOWN:]:
            table.add_row(*_cells(record, names=names))
    return table


def _names(records: Sequence[StepRecord]) -> list[str]:
    """The terms of the loss, where it has more than one."""
    names = list(records[0].terms) if records else []
    return names if len(names) > 1 else []


def _cells(record: StepRecord, *, names: Sequence[str]) -> list[str]:
    rate = record.num_tokens / record.seconds
    terms = [f"{record.terms[name]:.6f}" for name in names]
    if record.value_loss is not None:
        terms.append(f"{record.value_loss:.6f}")
    figures = [f"{record.grad_norm:.4f}", f"{record.lr:.2e}", f"{record.num_tokens:,}", f"{rate:,.0f}"]
    return [str(record.step), f"{record.loss:.6f}", *terms, *figures]

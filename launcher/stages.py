"""What the set-up of a run took, step by step, as a table. Torch-free: reads what rank 0 wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.table import Table

from launcher.files import read_json


def render_stages(path: Path) -> Table:
    """Seconds and gigabytes per step, of the rank that took most, within 80 columns."""
    data: Any = read_json(path)
    table = Table(
        box=SIMPLE,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
        caption=f"{data['parameters_per_rank']:,} parameters per rank, at most; vocabulary padded to "
        f"{data['padded_vocab_size']:,}; GB are 1e9 bytes",
        caption_justify="left",
    )
    table.add_column("step", no_wrap=True)
    for header in ("seconds", "host GB", "host peak", "GPU GB", "GPU peak"):
        table.add_column(header, justify="right", no_wrap=True)
    for name, stage in data["stages"].items():
        figures = (stage["host_gb"], stage["host_peak_gb"], stage["device_gb"], stage["device_peak_gb"])
        table.add_row(name, f"{stage['seconds']:.2f}", *(f"{gb:.2f}" for gb in figures))
    return table

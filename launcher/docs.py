"""docs/requirements.md, generated from every row there is. `python -m launcher.docs` writes all generated pages.

Owns that page's layout only: each word about a rule is its row's. The other pages are `launcher.duties`'.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

from launcher import duties, node_tables
from launcher.markdown import table
from launcher.requirement import Requirement, Severity
from launcher.rules import RULES

PAGE = Path(__file__).resolve().parents[1] / "docs" / "requirements.md"

TITLES = {
    "PL": "Parallel layouts (megatron_setup/parallelism.py)",
    "MD": "The model (megatron_setup/model.py)",
    "MO": "Mixture of experts (megatron_setup/moe.py)",
    "MT": "Multi-token prediction (megatron_setup/mtp.py)",
    "LO": "LoRA (megatron_setup/peft.py)",
    "DR": "The draft model (megatron_setup/draft.py)",
    "PR": "Precision (megatron_setup/precision.py)",
    "PE": "Performance (megatron_setup/performance.py)",
    "OP": "Optimizer and gradient reduction (megatron_setup/optimizer.py)",
    "CK": "Checkpoints (megatron_setup/checkpoint.py)",
    "TR": "The job train (megatron_setup/training.py)",
    "VA": "The value model (megatron_setup/value.py)",
    "GE": "Generation (megatron_setup/generation.py)",
    "GP": "What only a GPU has (megatron_setup/gpu_only.py)",
    "ZK": "Zero-KL (zero_kl/requirements)",
    "CL": "The cluster (launcher/cluster.py, launcher/slurm/domains.py)",
    "PD": "Not built yet (launcher/pending.py)",
}
"""By the letters of a rule's code."""

HEAD = """\
# Requirements

Generated from the rows by `python -m launcher.docs`; do not edit. `python -m launcher explain CODE` prints one row.
A row marked (warning) is printed and stops nothing."""


def render_page(rules: Sequence[Requirement]) -> str:
    """The page, ending with a newline; `rules` come in the order of their tables."""
    sections = [_rules(prefix, rows=list(rows)) for prefix, rows in groupby(rules, key=lambda row: row.code[:2])]
    others = [_table(page.title, columns=page.columns, rows=page.rows) for page in node_tables.tables()]
    return "\n\n".join([HEAD, *sections, *others]) + "\n"


def _table(title: str, *, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return f"## {title}\n\n{table(columns, rows=rows)}"


def _rules(prefix: str, *, rows: Sequence[Requirement]) -> str:
    assert prefix in TITLES, f"launcher/docs.py has no title for the rules {prefix}..."
    return _table(
        TITLES[prefix],
        columns=("code", "key", "needs", "when", "why", "source"),
        rows=(
            (
                f"{row.code} (warning)" if row.severity is Severity.WARNING else row.code,
                f"`{row.key}`",
                row.want.text,
                row.when.text,
                row.why,
                row.source,
            )
            for row in rows
        ),
    )


def pages() -> dict[Path, str]:
    """Every generated page by its file."""
    others = {source.with_suffix(".md"): duties.render_page(duties.read_page(source)) for source in duties.SOURCES}
    return {PAGE: render_page(RULES), **others}


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text)
        print(path)

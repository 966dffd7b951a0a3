"""The rows with a code that are about a node and not about a key: as tables of text, for the docs and for `explain`.

Owns no row: each table's title names the module that does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zero_kl.architectures import UNSUPPORTED
from zero_kl.environment import VARIABLES
from zero_kl.gates import DEVICES, FEATURES, sm_range
from zero_kl.selftest.table import CHECKS
from zero_kl.versions import PACKAGES, PAIRS


@dataclass(frozen=True, kw_only=True)
class NodeTable:
    """`title` names the module that owns the rows; the first column is the code."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def by_column(self) -> Mapping[str, Mapping[str, str]]:
        """Each row's cells by their columns, by the row's code."""
        return {row[0]: dict(zip(self.columns, row, strict=True)) for row in self.rows}


def tables() -> tuple[NodeTable, ...]:
    """Every table, in the order in which a run comes to them."""
    return (_model(), _environment(), _packages(), _devices(), _features(), _self_test())


def _model() -> NodeTable:
    return NodeTable(
        title="The resolved model (zero_kl/architectures.py)",
        columns=("code", "refused", "why", "source"),
        rows=tuple((row.code, row.feature, row.why, row.source) for row in UNSUPPORTED),
    )


def _environment() -> NodeTable:
    return NodeTable(
        title="Environment variables (zero_kl/environment.py)",
        columns=("code", "variable", "set to", "refused", "when", "why", "source"),
        rows=tuple(
            (
                row.code,
                f"`{row.name}`",
                "" if row.value is None else f"`{row.value}`",
                " ".join(row.refused) if row.value is None else "any other value",
                row.when.text,
                row.why,
                row.source,
            )
            for row in VARIABLES
        ),
    )


def _packages() -> NodeTable:
    single = (
        (row.code, " or ".join(row.distributions), str(row.wanted), row.measured, row.when.text, row.why, row.source)
        for row in PACKAGES
    )
    pairs = (
        (
            row.code,
            f"{row.first} {row.first_range} with {row.second} {row.second_range}",
            "not together",
            "",
            row.when.text,
            row.why,
            row.source,
        )
        for row in PAIRS
    )
    return NodeTable(
        title="Packages (zero_kl/versions.py; a version other than the measured one is a warning)",
        columns=("code", "package", "needs", "measured", "when", "why", "source"),
        rows=(*single, *pairs),
    )


def _devices() -> NodeTable:
    return NodeTable(
        title="GPUs (zero_kl/gates.py)",
        columns=("code", "platform", "needs", "why", "source"),
        rows=tuple((row.code, row.platform.value, sm_range(row), row.why, row.source) for row in DEVICES),
    )


def _features() -> NodeTable:
    return NodeTable(
        title="Fields of megatron-core's TransformerConfig (zero_kl/gates.py)",
        columns=("code", "field", "why", "where it is missing", "source"),
        rows=tuple((row.code, f"`{row.field}`", row.why, row.stand_in or "refused", row.source) for row in FEATURES),
    )


def _self_test() -> NodeTable:
    return NodeTable(
        title="The node's self-test (zero_kl/selftest/table.py)",
        columns=("code", "check", "when", "why", "source"),
        rows=tuple((row.code, row.name, row.when.text, row.why, row.source) for row in CHECKS),
    )

"""Comparing a row among others: each way to depend on the batch is named, and equal means equal bits."""

from collections.abc import Callable

import pytest
import torch

from zero_kl.selftest.rows import check_group_rows, check_rows, rows_that_differ

type Op = Callable[[torch.Tensor], torch.Tensor]

DEPENDENT: dict[str, tuple[Op, str]] = {
    "batch size": (lambda rows: rows * len(rows), "3 of 3 rows differ between a batch of 3 and one of 8"),
    "order": (lambda rows: rows + rows[:1] * (len(rows) == 8), "8 of 8 rows differ when their order is reversed"),
    "padding": (lambda rows: rows + (rows == 0).any(), "4 of 4 rows differ when padding follows them"),
}


def _rows() -> torch.Tensor:
    return 1 + torch.arange(16.0).reshape(8, 2)


@pytest.mark.parametrize(("op", "found"), DEPENDENT.values(), ids=DEPENDENT)
def test_every_dependence_is_named(op: Op, found: str) -> None:
    sizes = (3,) if "batch" in found else ()
    assert check_rows(op, rows=_rows(), sizes=sizes) == found


def test_a_row_alone_is_compared_at_both_ends() -> None:
    def last_is_wrong(rows: torch.Tensor) -> torch.Tensor:
        return rows * (1 + (rows[:, :1] == 15) * (len(rows) == 2))

    assert check_rows(last_is_wrong, rows=_rows(), sizes=(2,)) == "1 of 2 rows differ between a batch of 2 and one of 8"


def test_rowwise_operations_hold() -> None:
    assert check_rows(lambda rows: rows.sum(-1, keepdim=True), rows=_rows(), sizes=(1, 3, 5)) is None


def test_bits_count_not_values() -> None:
    zeros = torch.tensor([[0.0], [0.0], [float("nan")]])
    others = torch.tensor([[-0.0], [0.0], [float("nan")]])
    assert rows_that_differ(zeros, right=others) == 1


def test_a_group_that_sees_its_size_is_named() -> None:
    rows = torch.ones(9, 2)

    def by_size(all_rows: torch.Tensor, splits: list[int]) -> torch.Tensor:
        return torch.cat([part * (len(part) if i == 2 else 1) for i, part in enumerate(all_rows.split(splits))])

    found = check_group_rows(by_size, rows=rows, splits=[4, 0, 5], sizes=(1,))
    assert found == "1 of 1 rows of group 2 differ between 1 rows and 5"
    assert check_group_rows(lambda rows, splits: rows, rows=rows, splits=[4, 0, 5], sizes=(1, 4)) is None

"""The row, the wants, the renderer."""

from dataclasses import replace
from typing import Any

import pytest

from launcher.requirement import (
    ALWAYS,
    KNOWN_ARCHITECTURE,
    Between,
    Check,
    Condition,
    Equals,
    Finding,
    OneOf,
    Requirement,
    Severity,
    Subject,
    Want,
    check_all,
    render,
    show,
)
from launcher.schema import Dtype
from tests.megatron_setup.example_layouts import DENSE, subject
from tests.plugin_golden import Golden

KEY = "generation.top_k"
ZERO_KL = Condition(who="zero-KL", text="zero_kl.required", test=lambda s: s.config.zero_kl.required)


def row(want: Want, *, key: str = KEY, when: Condition = ALWAYS) -> Requirement:
    return Requirement(code="XX001", key=key, want=want, when=when, why="because", source="upstream 1.0 file.py")


def finding(want: Want, *, key: str = KEY, **values: Any) -> Finding | None:
    violation = row(want, key=key).check(subject(DENSE, **values))
    return None if violation is None else violation.finding


@pytest.mark.parametrize(
    ("want", "value", "hint"),
    [
        (Equals(0), 0, None),
        (Equals(0), 3, "0"),
        (Equals(None), 3, "null"),
        (Equals(1), True, "1"),
        (Equals(True), 1, "true"),
        (OneOf((2, 4)), 4, None),
        (OneOf((2, 4)), 3, "2"),
        (OneOf((1, 2)), True, "1"),
        (OneOf((None, 1)), 3, "null"),
        (Between(low=1), 1, None),
        (Between(low=1), 0, "1"),
        (Between(high=8), 9, "8"),
        (Between(low=1, high=8), 9, "8"),
        (Between(low=1, high=8), None, None),
    ],
)
def test_wants(want: Want, value: Any, hint: str | None) -> None:
    found = finding(want, generation__top_k=value)
    assert (found is None) == (hint is None)
    if found is not None:
        assert found.hints == (f"{KEY}={hint}",)
        assert found.found == show(value)


@pytest.mark.parametrize(
    ("want", "text"),
    [
        (Equals(False), "false"),
        (OneOf((None, Dtype.bfloat16)), "null or bfloat16"),
        (Between(low=1), "at least 1"),
        (Between(high=0.5), "at most 0.5"),
        (Between(low=1, high=8), "between 1 and 8"),
        (Check("a multiple of 64", lambda _: None), "a multiple of 64"),
    ],
)
def test_wants_in_words(want: Want, text: str) -> None:
    assert want.text == text


def test_an_enum_is_shown_as_it_is_typed() -> None:
    found = finding(Equals(Dtype.bfloat16), key="precision.dtype", precision__dtype=Dtype.float32)
    assert found == Finding(found="float32", wanted="bfloat16", hints=("precision.dtype=bfloat16",))


def test_a_misspelt_key_is_our_bug() -> None:
    with pytest.raises(AttributeError):
        subject(None).value("generation.topk")


@pytest.mark.parametrize(
    ("required", "known", "applies"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_joined_conditions(required: bool, known: bool, applies: bool) -> None:
    when = ZERO_KL & KNOWN_ARCHITECTURE
    layout = subject(DENSE if known else None, zero_kl__required=required, generation__top_k=3)
    assert (row(Equals(0), when=when).check(layout) is not None) is applies
    assert when.who == "zero-KL"
    assert when.text == "zero_kl.required and the model's shape is known"


def test_all_violations_come_at_once_and_in_order() -> None:
    table = (
        row(Equals(0)),
        row(Equals(1.0), key="generation.top_p"),
        row(Equals(1.0), key="generation.temperature"),
    )
    found = check_all(table, subject=subject(None, generation__top_k=3, generation__temperature=0.5))
    assert [violation.row.key for violation in found] == ["generation.top_k", "generation.temperature"]


def _sum(_: Subject) -> Finding:
    return Finding(found="6", wanted="a multiple of 4", arithmetic="2 x 2 = 4", hints=("a.b=4", "c.d=1"))


@pytest.mark.parametrize("name", ["plain", "sum", "no_hint", "warning"])
def test_rendering(name: str, golden: Golden) -> None:
    rows = {
        "plain": row(Equals(0), when=ZERO_KL),
        "sum": row(Check("a multiple", _sum)),
        "no_hint": row(Check("something", lambda _: Finding(found="3", wanted="something else"))),
        "warning": replace(row(Equals(0)), severity=Severity.WARNING),
    }
    violation = rows[name].check(subject(None, zero_kl__required=True, generation__top_k=3))
    assert violation is not None
    golden(render(violation), name=f"requirement/{name}.txt")

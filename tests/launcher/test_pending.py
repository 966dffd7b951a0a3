"""What is not built yet is refused where it is set, with the reason, and what is typed instead leaves the default."""

import pytest

from launcher.compose import compose
from launcher.pending import DUTIES, REQUIREMENTS
from launcher.requirement import Requirement, Subject, render
from launcher.resolved import flatten
from launcher.schema import RunConfig
from tests.command_line import retyped
from tests.other_values import with_another_value
from tests.plugin_golden import Golden

BASE = compose([]).config
TYPED = {
    "performance.cuda_graph_modules": "performance.cuda_graph_modules=[attn]",
    "performance.empty_unused_memory_level": "performance.empty_unused_memory_level=1",
}
"""One of each kind as typed: a list, a number."""


def text_of(row: Requirement, *, config: RunConfig) -> str:
    violation = row.check(Subject(config=config, architecture=None))
    assert violation is not None, f"{row.code} does not see {row.key}"
    return render(violation)


def test_error_texts(golden: Golden) -> None:
    texts = [text_of(row, config=with_another_value(BASE, key=row.key)) for row in REQUIREMENTS]
    golden("\n\n".join(texts), name="pending.txt")


@pytest.mark.parametrize("key", TYPED)
def test_hint_repairs(key: str) -> None:
    row = next(row for row in REQUIREMENTS if row.key == key)
    violation = row.check(Subject(config=compose([TYPED[key]]).config, architecture=None))
    assert violation is not None
    repaired = compose(retyped([TYPED[key]], hints=violation.finding.hints)).config
    assert flatten(repaired)[key] == flatten(BASE)[key]


def test_defaults_are_left_alone() -> None:
    subject = Subject(config=BASE, architecture=None)
    assert [row.code for row in REQUIREMENTS if row.check(subject)] == []


def test_codes_are_used_once() -> None:
    codes = [code for duty in DUTIES for code in duty.keys]
    assert len(codes) == len(set(codes)) == len(REQUIREMENTS)

"""The points of a sweep, each judged before anything is started: valid, refused by rules, a duplicate, or done before.

Owns the judgement and its one rule of counting: every point has exactly one state. Starts nothing.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from launcher.compose import Composed, compose
from launcher.environment import check_environment
from launcher.errors import ConfigError
from launcher.paths import AttemptPaths
from launcher.plan import Plan, make_plan
from launcher.requirement import render
from launcher.schema import RunConfig
from launcher.submit import finished_attempt, running_attempts
from launcher.sweep.expand import Expansion
from launcher.validate import validate


class State(Enum):
    """What is to be done with a point. The value is the word that people read."""

    NEW = "to run"
    PRUNED = "pruned"
    DUPLICATE = "duplicate"
    FINISHED = "finished"
    RUNNING = "running"


@dataclass(frozen=True, kw_only=True)
class Point:
    """`number` counts from 1. `name` is what tells it from the others. A pruned one has no plan."""

    number: int
    name: str
    composed: Composed
    state: State
    plan: Plan | None = None
    reasons: tuple[str, ...] = ()
    """Of a pruned one: each rule's text, with arithmetic and what to type instead."""

    twin: int = 0
    """Of a duplicate: the number of the first point that asks the same."""

    attempt: AttemptPaths | None = None
    """Of a finished or running one."""

    @property
    def config(self) -> RunConfig:
        """Its configuration."""
        return self.composed.config

    @property
    def priced(self) -> Plan:
        """The plan of a point that has one; asking a pruned one is our bug."""
        assert self.plan is not None, f"point {self.number} is {self.state.value}"
        return self.plan


def judge(expansion: Expansion) -> tuple[Point, ...]:
    """Compose and validate all points, and compare each with those before it.

    Raises ConfigError where words cannot be composed: that is a slip in what was typed, and no point of the sweep.
    """
    points: list[Point] = []
    first: dict[str, int] = {}
    for number, composed in enumerate(_compose_all(expansion), start=1):
        name = " ".join(expansion.points[number - 1]) or "(the only point)"
        point = _validated(number, name=name, composed=composed)
        if point.plan is not None and (twin := first.setdefault(point.plan.digest, number)) != number:
            point = replace(point, state=State.DUPLICATE, twin=twin)
        points.append(point)
    _refuse_mixed(points)
    return tuple(points)


def _compose_all(expansion: Expansion) -> list[Composed]:
    found: list[Composed] = []
    problems: list[str] = []
    for point in expansion.points:
        try:
            found.append(compose(expansion.words(point)))
        except ConfigError as error:
            problems.append(str(error))
    if problems:
        head = f"error: {len(problems)} of {len(expansion.points)} points cannot be composed; nothing is started"
        each = "\n\n".join(problems).split("\n\n")
        raise ConfigError("\n\n".join([head, *dict.fromkeys(each)]))
    return found


def _validated(number: int, *, name: str, composed: Composed) -> Point:
    point = Point(number=number, name=name, composed=composed, state=State.PRUNED)
    try:
        validation = validate(composed.config)
        if validation.violations:
            return replace(point, reasons=tuple(render(v) for v in validation.violations))
        check_environment(composed.config)
    except ConfigError as error:
        return replace(point, reasons=(str(error),))
    return replace(point, state=State.NEW, plan=make_plan(composed.config, validation=validation))


def _refuse_mixed(points: Sequence[Point]) -> None:
    """A sweep has one folder and one way to run."""
    for key, values in (
        ("cluster.kind", {p.config.cluster.kind.value for p in points}),
        ("output_dir", {p.config.output_dir for p in points}),
        ("force", {str(p.config.force).lower() for p in points}),
    ):
        if len(values) > 1:
            raise ConfigError(
                f"error: {key} is {' and '.join(sorted(values))}, a sweep needs one for all points\n"
                f"hint: {key}={min(values)}"
            )


def recognise(points: Sequence[Point]) -> tuple[Point, ...]:
    """The points with those marked that an earlier run answers, or one that is on its way; none with force=true.

    Raises SubmissionError where Slurm has to be asked and does not answer.
    """
    if not points or points[0].config.force:
        return tuple(points)
    new = [p for p in points if p.state is State.NEW]
    running = running_attempts(p.priced.run for p in new)
    return tuple(_seen_before(p, running=running) if p.state is State.NEW else p for p in points)


def _seen_before(point: Point, *, running: dict[str, AttemptPaths]) -> Point:
    run = point.priced.run
    if str(run.root) in running:
        return replace(point, state=State.RUNNING, attempt=running[str(run.root)])
    done = finished_attempt(run) if run.root.is_dir() else None
    return point if done is None else replace(point, state=State.FINISHED, attempt=done)


def count(points: Iterable[Point]) -> dict[State, int]:
    """How many points are in each state; every state is there."""
    counted = Counter(point.state for point in points)
    return {state: counted[state] for state in State}


def sweep_digest(points: Iterable[Point]) -> str:
    """Eight hexadecimal digits of the questions of all valid points, in any order."""
    questions = sorted({point.plan.digest for point in points if point.plan is not None})
    return hashlib.sha256(" ".join(questions).encode()).hexdigest()[:8]

"""What a person reads about a sweep: why points are pruned, one priced table, the count. 80 columns. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from launcher.sweep.expand import Expansion
from launcher.sweep.groups import Group
from launcher.sweep.points import Point, State, count

_WIDTH = 80
_HEAD = "   # GROUP RANKS NODES GPUS GPU-HOURS  POINT"
_GROUPS_HEAD = "GROUP POINTS NODES RANKS/NODE GPUS MINUTES AT ONCE   GPU-HOURS"


def render_judged(expansion: Expansion, *, points: Sequence[Point], groups: Sequence[Group]) -> str:
    """All of it: the shared words, pruned points by reason, the table, the groups, the count."""
    noun = "point" if len(points) == 1 else "points"
    head = f"{len(points)} {noun} of: {' '.join(expansion.fixed) or '(no words for all)'}"
    if expansion.num_excluded:
        head += f"\n{expansion.num_excluded} more excluded as asked"
    parts = [head, *_pruned(points), _table(points, groups=groups), *_groups(groups)]
    return "\n\n".join([part for part in parts if part] + [render_count(points)])


def _pruned(points: Iterable[Point]) -> list[str]:
    """Each reason once, above it the points that it prunes. The reason has rule, arithmetic and what to type."""
    by_reason: dict[str, list[Point]] = {}
    for point in points:
        if point.state is State.PRUNED:
            by_reason.setdefault("\n".join(point.reasons), []).append(point)
    return [f"{_pruned_head(members)}\n{textwrap.indent(reason, '  ')}" for reason, members in by_reason.items()]


def _pruned_head(points: Sequence[Point]) -> str:
    return "\n".join(_wrapped(f"pruned {point.number}: ", text=point.name) for point in points)


def _table(points: Iterable[Point], *, groups: Sequence[Group]) -> str:
    """A row for each point that is not pruned; what is not to run says why not in the columns of its price."""
    of_group = {point.number: n for n, group in enumerate(groups, start=1) for point in group.points}
    rows = [_row(point, group=of_group.get(point.number)) for point in points if point.state is not State.PRUNED]
    return "\n".join([_HEAD, *rows]) if rows else ""


def _row(point: Point, *, group: int | None) -> str:
    plan = point.priced
    if group is None:
        said = {
            State.DUPLICATE: f"duplicate of {point.twin}",
            State.FINISHED: "finished before",
            State.RUNNING: "running",
        }
        prefix = f"{point.number:4d} {said[point.state]:32s}"
    else:
        layout = f"{plan.layout.world_size:5d} {plan.num_nodes:5d} {plan.num_gpus:4d} {plan.gpu_hours:9.2f}"
        prefix = f"{point.number:4d} {group:5d} {layout}"
    return _wrapped(f"{prefix}  ", text=point.name)


def _wrapped(prefix: str, *, text: str) -> str:
    """The text behind the prefix, on as many lines as it needs; a single long word stays whole."""
    return textwrap.fill(
        text,
        width=_WIDTH,
        initial_indent=prefix,
        subsequent_indent=" " * len(prefix),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _groups(groups: Sequence[Group]) -> list[str]:
    """A row for each group, and the sum."""
    if not groups:
        return []
    rows = [
        f"{number:5d} {len(group.points):6d} {group.plan.num_nodes:5d} {group.plan.processes_per_node:10d} "
        f"{group.plan.num_gpus:4d} {group.plan.timeout_min:7d} {group.at_once or 'all':>7} {group.gpu_hours:11.2f}"
        for number, group in enumerate(groups, start=1)
    ]
    total = f"{'together, at the time limits':51s}{sum(group.gpu_hours for group in groups):11.2f}"
    return ["\n".join([_GROUPS_HEAD, *rows, total])]


def render_count(points: Sequence[Point], *, verb: str = "to run") -> str:
    """Where every point went; `verb` says what became of those that were to run."""
    counted = count(points)
    assert sum(counted.values()) == len(points), "a point has one state"
    words = {State.NEW: verb}
    parts = [f"{number} {words.get(state, state.value)}" for state, number in counted.items()]
    return f"{len(points)} expected = {' + '.join(parts)}"

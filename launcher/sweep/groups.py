"""The points to run, grouped by what they ask of Slurm, and what they cost. Pure.

A group is one signature: nodes, GPUs, time and everything else that the elements of an array must share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.paths import AttemptPaths
from launcher.plan import Plan
from launcher.schema import RunConfig
from launcher.slurm.parameters import interpreter, parameters
from launcher.slurm.shape import derive_shape
from launcher.sweep.points import Point, State

_NOWHERE = Path("/")
_OWN = ("job_name", "teardown")
"""Parameters that an array sets for itself."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """Points of one signature, at least one. Hours are at the time limit."""

    points: tuple[Point, ...]

    @property
    def plan(self) -> Plan:
        """The first point's: all agree in what it says of nodes, GPUs and time."""
        return self.points[0].priced

    @property
    def gpu_hours(self) -> float:
        """Of all points together."""
        return round(sum(point.priced.gpu_hours for point in self.points), 2)

    @property
    def at_once(self) -> int | None:
        """How many of its points may run at one time by `cluster.max_gpus`; None: no limit."""
        return limit_of(self.points[0].config)

    @property
    def array_size(self) -> int | None:
        """How many elements its arrays may have; None: Slurm is to be asked."""
        return self.points[0].config.cluster.max_array_size


def group_points(points: Iterable[Point]) -> tuple[Group, ...]:
    """The points that are to run, by signature, in the order of their first points."""
    found: dict[str, list[Point]] = {}
    for point in points:
        if point.state is State.NEW:
            found.setdefault(signature(point.config), []).append(point)
    return tuple(Group(points=tuple(members)) for members in found.values())


def limit_of(config: RunConfig) -> int | None:
    """How many runs like this one may be on at one time by `cluster.max_gpus`; None: no limit."""
    most, num_gpus = config.cluster.max_gpus, derive_shape(config).num_gpus
    return None if most is None or num_gpus == 0 else most // num_gpus


def signature(config: RunConfig) -> str:
    """Everything that sbatch is asked for, as text."""
    asked = parameters(config, attempt=AttemptPaths(_NOWHERE), code=_NOWHERE)
    shared = {name: value for name, value in asked.items() if name not in _OWN}
    return repr((sorted(shared.items()), interpreter(config), config.cluster.max_gpus, config.cluster.max_array_size))


def chunks[T](points: Sequence[T], *, size: int) -> Iterator[Sequence[T]]:
    """Parts of at most `size` points, as even as they can be: 5 in parts of 4 are 3 and 2."""
    count = -(-len(points) // size)
    for i in range(count):
        yield points[i * len(points) // count : (i + 1) * len(points) // count]

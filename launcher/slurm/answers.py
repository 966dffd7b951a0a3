"""What Slurm's programs print, read into data: scontrol show config, sinfo, scontrol show topology. Pure.

Tested on answers of a real Slurm 22.05; those of the block topology (24.05 and newer) are from its documentation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

SINFO_FORMAT = "%P|%a|%l|%M|%D|%c|%m|%G"
"""Partition, availability, time limit, preemption mode, nodes, CPUs, memory and Gres: a row for each kind of node."""


@dataclass(frozen=True, kw_only=True)
class NodeKind:
    """Nodes of a partition that are alike. Memory in MiB, as slurm.conf's RealMemory."""

    nodes: int
    cpus: int
    memory_mb: int
    gres: str

    @property
    def gpus(self) -> int:
        """GPUs of a node."""
        return count_gpus(self.gres)


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A partition that takes jobs; `kinds` has the most frequent kind of node first."""

    name: str
    is_default: bool
    limit_min: int | None
    """Time limit in minutes; None: none."""

    preempt_mode: str
    kinds: tuple[NodeKind, ...]

    @property
    def gpu_nodes(self) -> int:
        """Nodes that have GPUs."""
        return sum(kind.nodes for kind in self.kinds if kind.gpus)

    @property
    def usual_node(self) -> NodeKind:
        """The most frequent kind of node, among those with GPUs where there are any."""
        return next((kind for kind in self.kinds if kind.gpus), self.kinds[0])


def parse_config(text: str) -> dict[str, str]:
    """The lines "Name = value" of `scontrol show config`."""
    found = re.findall(r"^(\w+)\s*= ?(.*?)\s*$", text, re.MULTILINE)
    return dict(found)


def parse_partitions(text: str) -> tuple[Partition, ...]:
    """`sinfo --noheader --exact` in SINFO_FORMAT; partitions that are down are left out."""
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == SINFO_FORMAT.count("|")]
    by_name: dict[str, list[list[str]]] = {}
    for row in rows:
        if row[1] == "up":
            by_name.setdefault(row[0], []).append(row)
    return tuple(_partition(name, rows=of_it) for name, of_it in by_name.items())


def _partition(name: str, *, rows: list[list[str]]) -> Partition:
    """sinfo also parts nodes by their state, which says nothing of their kind."""
    nodes: dict[tuple[str, str, str], int] = {}
    for _, _, _, _, count, cpus, memory, gres in rows:
        nodes[cpus, memory, gres] = nodes.get((cpus, memory, gres), 0) + int(count)
    kinds = [
        NodeKind(nodes=count, cpus=int(cpus), memory_mb=int(memory), gres=gres)
        for (cpus, memory, gres), count in nodes.items()
    ]
    return Partition(
        name=name.removesuffix("*"),
        is_default=name.endswith("*"),
        limit_min=parse_limit(rows[0][2]),
        preempt_mode=rows[0][3],
        kinds=tuple(sorted(kinds, key=lambda kind: -kind.nodes)),
    )


def count_gpus(gres: str) -> int:
    """GPUs in a Gres of a node: "gpu:h100:8(S:0-1)" has 8, "gpu:a100:4,gpu:t4:2" has 6, "gpu" has 1."""
    without_sockets = re.sub(r"\([^)]*\)", "", gres)
    names = [entry.split(":") for entry in without_sockets.split(",")]
    return sum(int(parts[-1]) if parts[-1].isdigit() else 1 for parts in names if parts[0] == "gpu")


def parse_limit(text: str) -> int | None:
    """sinfo's time limit in whole minutes: "infinite", or [days-][[hours:]minutes:]seconds with days or hours first."""
    if text in ("infinite", "n/a"):
        return None
    days, _, clock = text.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    hours, minutes = ([0] * (3 - len(parts)) + parts)[:2]
    return int(days or 0) * 1440 + hours * 60 + minutes


def parse_block_size(text: str) -> int | None:
    """Nodes of the smallest block in `scontrol show topology`; None where the topology has no blocks.

    Blocks of blocks are lines of their own, AggregatedBlock.
    """
    sizes = [int(size) for size in re.findall(r"^BlockName=.*\bBlockSize=(\d+)", text, re.MULTILINE)]
    return min(sizes, default=None)


def parse_version(config: Mapping[str, str]) -> tuple[int, int] | None:
    """Slurm's version, as (24, 5); None where the configuration does not say."""
    found = re.match(r"(\d+)\.(\d+)", config.get("SLURM_VERSION", ""))
    return (int(found.group(1)), int(found.group(2))) if found else None

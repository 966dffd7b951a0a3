"""Nodes, ranks per node and NVLink segments of a run, derived from its parallel layout. Pure.

Owns the derivation. It never refuses: what does not fit is for the rules in `launcher.cluster`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from launcher.schema import PlatformKind, RunConfig
from launcher.schema.cluster import ClusterConfig, ClusterKind
from launcher.schema.layout import Layout, derive_layout


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Ranks are consecutive on a node. `gpus_per_node` is what is asked for and paid, 0 on the CPU platform."""

    nodes: int
    ranks_per_node: int
    gpus_per_node: int
    segment: int | None
    """Nodes that share an NVLink domain for certain; null where a domain is a node, or the run is on one."""

    @property
    def num_gpus(self) -> int:
        """GPUs that the run holds."""
        return self.nodes * self.gpus_per_node


def derive_shape(config: RunConfig) -> Shape:
    """The shape of a run: `cluster.nodes`, else as few nodes as the GPUs allow; one on the CPU platform."""
    layout, cluster = derive_layout(config), config.cluster
    on_gpu = config.platform.kind is not PlatformKind.cpu
    world = max(layout.world_size, 1)
    if cluster.nodes is not None:
        per_node = math.ceil(world / max(cluster.nodes, 1))
    else:
        per_node = min(world, max(ranks_of_full_node(cluster), 1)) if on_gpu else world
    nodes = math.ceil(world / per_node) if cluster.nodes is None else cluster.nodes
    gpus = cluster.gpus_per_node if cluster.exclusive else gpus_of(per_node, cluster=cluster)
    return Shape(
        nodes=nodes,
        ranks_per_node=per_node,
        gpus_per_node=gpus if on_gpu else 0,
        segment=_segment(nodes, cluster=cluster, span=expert_span(layout, ranks_per_node=per_node)),
    )


def ranks_on_gpu(cluster: ClusterConfig) -> int:
    """Ranks that share a GPU. What is refused (CL039) counts as 1 here."""
    return max(cluster.ranks_per_gpu, 1)


def ranks_of_full_node(cluster: ClusterConfig) -> int:
    """Ranks that the GPUs of a node have room for."""
    return cluster.gpus_per_node * ranks_on_gpu(cluster)


def gpus_of(ranks: int, *, cluster: ClusterConfig) -> int:
    """GPUs that so many ranks of a node use."""
    return math.ceil(ranks / ranks_on_gpu(cluster))


def num_time_limits(config: RunConfig) -> int:
    """How many time limits a run may use up: one more for each restart after a timeout, where it saves its steps.

    A run that saves nothing would begin anew, and is not restarted.
    """
    again = config.cluster.kind is ClusterKind.slurm and config.checkpoint.save
    return 1 + (config.cluster.restarts.timeout if again else 0)


def gpu_hours(config: RunConfig) -> float:
    """What a run may cost at its time limits."""
    return derive_shape(config).num_gpus * config.cluster.timeout_min * num_time_limits(config) / 60


def _segment(nodes: int, *, cluster: ClusterConfig, span: int) -> int | None:
    if cluster.nodes_per_nvlink_domain is None or nodes <= 1:
        return None
    if cluster.segment is not None:
        return cluster.segment
    return best_segment(nodes, domain=cluster.nodes_per_nvlink_domain, span=span)


def expert_group_size(layout: Layout) -> int:
    """Ranks that hold one layer's experts together, ETP x EP: consecutive ones in megatron-core 0.19.2, whose expert
    grid counts ETP, then EP, then EDP, then PP (parallel_state.py, RankGenerator with order tp-cp-ep-dp-pp)."""
    return max(layout.expert_tensor_parallel_size * layout.expert_model_parallel_size, 1)


def expert_span(layout: Layout, *, ranks_per_node: int) -> int:
    """The fewest whole nodes that a whole number of expert groups fills."""
    return math.lcm(expert_group_size(layout), ranks_per_node) // ranks_per_node


def best_segment(nodes: int, *, domain: int, span: int) -> int:
    """The largest segment that divides the nodes, fits a domain and holds whole expert groups; where groups are larger
    than a domain, the largest that divides and fits."""
    fitting = [size for size in range(1, min(nodes, max(domain, 1)) + 1) if nodes % size == 0]
    return max([size for size in fitting if size % span == 0] or fitting)


def expert_groups_inside(layout: Layout, *, shape: Shape) -> tuple[int, int]:
    """How many expert groups lie inside one NVLink domain for certain, and how many there are."""
    size = expert_group_size(layout)
    ranks_together = shape.ranks_per_node * (shape.segment or 1)
    starts = range(0, layout.world_size - size + 1, size)
    inside = sum(first // ranks_together == (first + size - 1) // ranks_together for first in starts)
    return inside, len(starts)


def is_awkward(nodes: int, *, domain: int, span: int) -> bool:
    """More nodes than a domain has, and no segment fills more than half of one: the job is scattered."""
    return nodes > domain and 2 * best_segment(nodes, domain=domain, span=span) <= domain


def nearest_good_nodes(nodes: int, *, domain: int, span: int, step: int) -> int:
    """The nearest number of nodes, a multiple of `step`, that is not awkward; the smaller of two."""
    candidates = range(step, nodes + step * domain + 1, step)
    good = [n for n in candidates if not is_awkward(n, domain=domain, span=span)]
    return min(good, key=lambda n: (abs(n - nodes), n))

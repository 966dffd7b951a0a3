"""NVLink domains: what a run's nodes and segments must be for whole expert groups to share one, rows and findings.

Owns the rows CL030 to CL034. What segment a run gets where none is named is `launcher.slurm.shape`'s.
"""

from __future__ import annotations

import math

from launcher.requirement import Check, Finding, Requirement, Severity, Subject, show
from launcher.schema.cluster import ClusterKind
from launcher.schema.layout import derive_layout
from launcher.slurm.shape import (
    Shape,
    best_segment,
    derive_shape,
    expert_group_size,
    expert_groups_inside,
    expert_span,
    is_awkward,
    nearest_good_nodes,
)
from megatron_setup.rows import where

SEGMENT = "Slurm 24.05 sbatch(1), --segment"
_SHAPE = "launcher/slurm/shape.py"
_DOMAIN = (
    *("parallelism", "cluster.num_processes", "cluster.nodes_per_nvlink_domain", "cluster.gpus_per_node"),
    *("cluster.ranks_per_gpu", "cluster.nodes"),
)

SLURM = where("Slurm", text="cluster.kind is slurm", test=lambda c: c.cluster.kind is ClusterKind.slurm)
ASKED = SLURM & where("", text="cluster.segment is over 1", test=lambda c: (c.cluster.segment or 0) > 1)
KNOWN = where(
    "",
    text="cluster.nodes_per_nvlink_domain is set",
    test=lambda c: (c.cluster.nodes_per_nvlink_domain or 0) > 0,
)
UNKNOWN = where(
    "",
    text="cluster.nodes_per_nvlink_domain is null",
    test=lambda c: c.cluster.nodes_per_nvlink_domain is None,
)
SEVERAL = where("", text="there are several nodes", test=lambda c: derive_shape(c).nodes > 1)
DOMAINS = SLURM & KNOWN & SEVERAL
SEGMENT_SET = DOMAINS & where("", text="cluster.segment is set", test=lambda c: (c.cluster.segment or 0) > 0)
SEGMENT_OPEN = DOMAINS & where("", text="cluster.segment is null", test=lambda c: c.cluster.segment is None)


def _domain(subject: Subject) -> tuple[Shape, int, int]:
    """The shape, the nodes of a domain, and the nodes that whole expert groups fill."""
    shape, domain = derive_shape(subject.config), subject.config.cluster.nodes_per_nvlink_domain
    assert domain, "the row's condition"
    return shape, domain, expert_span(derive_layout(subject.config), ranks_per_node=shape.ranks_per_node)


def _segment_fits(subject: Subject) -> Finding | None:
    """The segment divides the nodes and fits a domain; of one node the only segment is 1."""
    (shape, domain, span), segment = _domain(subject), subject.config.cluster.segment
    assert segment, "the row's condition"
    if shape.nodes % segment == 0 and segment <= domain:
        return None
    best = best_segment(shape.nodes, domain=domain, span=span)
    return Finding(
        found=show(segment),
        wanted=f"a divisor of the {shape.nodes} node(s), at most the {domain} of a domain",
        arithmetic=f"{shape.nodes} node(s) = {shape.nodes // segment} x {segment} + {shape.nodes % segment}",
        hints=(f"cluster.segment={best if shape.nodes > 1 else 'null'}",),
    )


def _domain_known(subject: Subject) -> Finding | None:
    """A segment needs the size of a domain; only the person knows it, so the hint leaves the segment to Slurm."""
    segment = subject.config.cluster.segment
    return Finding(
        found="null", wanted=f"the nodes of a domain beside cluster.segment={segment}", hints=("cluster.segment=null",)
    )


def _groups_text(subject: Subject) -> str:
    layout, shape = derive_layout(subject.config), derive_shape(subject.config)
    inside, groups = expert_groups_inside(layout, shape=shape)
    return (
        f"{inside} of {groups} expert groups inside one domain: ETP x EP = {expert_group_size(layout)} ranks "
        f"at {shape.ranks_per_node} a node, segments of {shape.segment} node(s)"
    )


def _segment_holds_groups(subject: Subject) -> Finding | None:
    """No expert group is cut by the border of a segment."""
    shape, domain, span = _domain(subject)
    assert shape.segment, "the row's condition"
    if shape.segment % span == 0 or span > domain:
        return None
    return Finding(
        found=show(shape.segment),
        wanted=f"a multiple of the {span} nodes of an expert group",
        arithmetic=_groups_text(subject),
        hints=("cluster.segment=null",),
    )


def _groups_fit(subject: Subject) -> Finding | None:
    """An expert group fits an NVLink domain."""
    _, domain, span = _domain(subject)
    if span <= domain:
        return None
    return Finding(
        found=show(domain),
        wanted=f"{span} for the expert groups of this layout",
        arithmetic=_groups_text(subject),
    )


def _fills_domains(subject: Subject) -> Finding | None:
    """The nodes come in large equal parts of domains: 37 nodes would be 37 parts of 1."""
    config, layout = subject.config, derive_layout(subject.config)
    shape, domain, span = _domain(subject)
    if span > domain or not is_awkward(shape.nodes, domain=domain, span=span):
        return None
    step = math.lcm(layout.smallest_world, shape.ranks_per_node) // shape.ranks_per_node
    good = nearest_good_nodes(shape.nodes, domain=domain, span=span, step=step)
    ranks, fills = good * shape.ranks_per_node, best_segment(good, domain=domain, span=span)
    replicas = ranks // layout.model_size
    by_replicas = config.parallelism.data_parallel_size is not None
    by_count = config.cluster.num_processes is not None
    return Finding(
        found=f"{domain} with {shape.nodes} nodes",
        wanted="nodes that fill domains in large equal parts",
        arithmetic=f"{shape.nodes} nodes = {shape.nodes // (shape.segment or 1)} segment(s) of {shape.segment}; "
        f"nearest: {good} nodes = {good // fills} of {fills}",
        hints=(
            *((f"parallelism.data_parallel_size={replicas}",) if by_replicas else ()),
            *((f"cluster.num_processes={ranks}",) if by_count or not by_replicas else ()),
            *((f"cluster.nodes={good}",) if config.cluster.nodes is not None else ()),
        ),
    )


ROWS = (
    Requirement(
        code="CL030",
        key="cluster.segment",
        want=Check("a divisor of the nodes, at most those of a domain", _segment_fits),
        when=ASKED & KNOWN,
        why="Slurm places whole segments, each inside one block of the topology",
        source=SEGMENT,
        reads=_DOMAIN,
    ),
    Requirement(
        code="CL031",
        key="cluster.segment",
        want=Check("a multiple of the nodes of an expert group", _segment_holds_groups),
        when=SEGMENT_SET,
        severity=Severity.WARNING,
        why="an expert group over two domains exchanges its tokens over the network",
        source=_SHAPE,
        reads=_DOMAIN,
    ),
    Requirement(
        code="CL032",
        key="cluster.nodes_per_nvlink_domain",
        want=Check("at least the nodes of an expert group", _groups_fit),
        when=DOMAINS,
        severity=Severity.WARNING,
        why="an expert group over two domains exchanges its tokens over the network",
        source=_SHAPE,
        reads=_DOMAIN,
    ),
    Requirement(
        code="CL033",
        key="cluster.nodes_per_nvlink_domain",
        want=Check("nodes that fill domains in large equal parts", _fills_domains),
        when=SEGMENT_OPEN,
        severity=Severity.WARNING,
        why="a segment divides the nodes, so an awkward number of them is scattered over many domains",
        source=SEGMENT,
        reads=(*_DOMAIN, "cluster.segment", "parallelism.data_parallel_size"),
    ),
    Requirement(
        code="CL034",
        key="cluster.nodes_per_nvlink_domain",
        want=Check("the nodes of a domain where cluster.segment is over 1", _domain_known),
        when=ASKED & UNKNOWN,
        why="no segment is asked of Slurm where a domain is a node, so the one that was typed would be dropped",
        source=_SHAPE,
        reads=("cluster.segment",),
    ),
)

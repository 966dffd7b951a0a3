"""What the rules of `launcher.cluster` find, with the arithmetic: one function a rule. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from launcher.keys import as_typed
from launcher.requirement import Finding, Subject, show
from launcher.schema.layout import derive_layout
from launcher.slurm.options import BINDING, OWNED, SRUNS, spelled
from launcher.slurm.shape import (
    Shape,
    best_segment,
    derive_shape,
    expert_group_size,
    expert_groups_inside,
    expert_span,
    gpu_hours,
    is_awkward,
    nearest_good_nodes,
    num_time_limits,
)

_START_S = 60
"""Seconds that a rank may take until submitit handles its signals: the interpreter and the imports."""


def even(subject: Subject) -> Finding | None:
    """Every node has as many ranks."""
    nodes, world = subject.config.cluster.nodes, derive_layout(subject.config).world_size
    assert nodes, "the row's condition"
    if world % nodes == 0:
        return None
    return Finding(
        found=show(nodes),
        wanted="a divisor of the ranks",
        arithmetic=f"{world} rank(s) / {nodes} nodes = {world / nodes:.2f} ranks a node",
        hints=("cluster.nodes=null",),
    )


def enough(subject: Subject) -> Finding | None:
    """The nodes that were asked for have a GPU for each rank."""
    nodes, world = subject.config.cluster.nodes, derive_layout(subject.config).world_size
    assert nodes, "the row's condition"
    gpus = subject.config.cluster.gpus_per_node
    if world <= nodes * gpus:
        return None
    return Finding(
        found=show(nodes),
        wanted=f"at least {math.ceil(world / max(gpus, 1))}",
        arithmetic=f"{world} ranks > {nodes} node(s) x {gpus} GPUs = {nodes * gpus} GPUs",
        hints=("cluster.nodes=null",),
    )


def whole_nodes(subject: Subject) -> Finding | None:
    """Several nodes are full ones, with as many ranks on each."""
    gpus, world = subject.config.cluster.gpus_per_node, derive_layout(subject.config).world_size
    if world <= gpus or gpus < 1 or world % gpus == 0:
        return None
    fitting = max(n for n in range(1, gpus + 1) if world % n == 0)
    return Finding(
        found=show(gpus),
        wanted="a divisor of the ranks where they need several nodes",
        arithmetic=f"{world} ranks = {world // gpus} node(s) x {gpus} + {world % gpus}",
        hints=(f"cluster.gpus_per_node={fitting}",),
    )


def one_machine(subject: Subject) -> Finding | None:
    """A local run has all its GPUs in this machine."""
    gpus, world = subject.config.cluster.gpus_per_node, derive_layout(subject.config).world_size
    if world <= gpus:
        return None
    return Finding(
        found=show(gpus),
        wanted=f"at least {world}, one for each rank",
        arithmetic=f"{world} ranks on one machine of {gpus} GPU(s)",
        hints=(f"cluster.gpus_per_node={world}",),
    )


def budget(subject: Subject) -> Finding | None:
    """GPUs x time limit stays within the budget."""
    cluster, shape = subject.config.cluster, derive_shape(subject.config)
    hours, limits = gpu_hours(subject.config), num_time_limits(subject.config)
    if cluster.max_gpu_hours is None or hours <= cluster.max_gpu_hours:
        return None
    minutes = math.floor(cluster.max_gpu_hours * 60 / shape.num_gpus / limits)
    long_enough = minutes * 60 >= cluster.signal_delay_s + _START_S
    return Finding(
        found=show(cluster.max_gpu_hours),
        wanted=f"at least {hours:.2f}",
        arithmetic=f"{shape.nodes} node(s) x {shape.gpus_per_node} GPU(s) x {cluster.timeout_min} min "
        f"{'' if limits == 1 else f'x {limits} time limits '}/ 60 = {hours:.2f} GPU-hours",
        hints=(f"cluster.timeout_min={minutes}" if long_enough else f"cluster.max_gpu_hours={math.ceil(hours)}",),
    )


def one_run_fits(subject: Subject) -> Finding | None:
    """A sweep may hold at least the GPUs of each of its points."""
    most, shape = subject.config.cluster.max_gpus, derive_shape(subject.config)
    if most is None or shape.num_gpus <= most:
        return None
    return Finding(
        found=show(most),
        wanted=f"at least {shape.num_gpus}",
        arithmetic=f"{shape.nodes} node(s) x {shape.gpus_per_node} GPU(s) = {shape.num_gpus} GPUs",
        hints=(f"cluster.max_gpus={shape.num_gpus}",),
    )


def longer_than_partition(subject: Subject) -> Finding | None:
    """The time limit is within the partition's."""
    asked, most = subject.config.cluster.timeout_min, subject.config.cluster.max_timeout_min
    if most is None or most < 1 or asked <= most:
        return None
    return Finding(found=show(asked), wanted=f"at most {most}", hints=(f"cluster.timeout_min={most}",))


def late_signal(subject: Subject) -> Finding | None:
    """The warning signal comes after the ranks can take it."""
    limit, lead = subject.config.cluster.timeout_min * 60, subject.config.cluster.signal_delay_s
    if lead <= max(limit - _START_S, 0):
        return None
    return Finding(
        found=show(lead),
        wanted=f"at most {max(limit - _START_S, 0)}",
        arithmetic=f"{limit} s of time limit - {_START_S} s to start",
        hints=(f"cluster.signal_delay_s={max(limit - _START_S, 0)}",),
    )


def _without_entries(entries: Mapping[str, Any], *, wrong: Mapping[str, str], wanted: str) -> Finding | None:
    """A finding about the entries of cluster.sbatch in `wrong`, by name with what is wrong; None where there is none.

    An entry cannot be typed away but by ~.
    """
    if not wrong:
        return None
    return Finding(
        found=as_typed({name: entries[name] for name in wrong}),
        wanted=wanted,
        arithmetic="; ".join(f"{name}: {words}" for name, words in wrong.items()),
        hints=tuple(f"~cluster.sbatch.{name}" for name in wrong),
    )


def not_owned(subject: Subject) -> Finding | None:
    """cluster.sbatch repeats no key and touches nothing that the launcher sets itself."""
    entries = subject.config.cluster.sbatch
    wrong = {name: OWNED[spelled(name)] for name in entries if spelled(name) in OWNED}
    return _without_entries(entries, wrong=wrong, wanted="options that have no key of their own")


def writable(subject: Subject) -> Finding | None:
    """An option's value is something sbatch can read."""
    entries = subject.config.cluster.sbatch
    wrong = {
        name: f"{as_typed(value)} is no value of an option"
        for name, value in entries.items()
        if value is not True and not (isinstance(value, str | int | float) and not isinstance(value, bool))
    }
    return _without_entries(entries, wrong=wrong, wanted="texts, numbers or true")


def not_the_launchers(subject: Subject) -> Finding | None:
    """cluster.srun_args repeats nothing that the launcher gives srun; --cpu-bind is its own only with a binding."""
    given = {*SRUNS, *(BINDING if subject.config.cluster.cpu_bind is not None else ())}
    args = subject.config.cluster.srun_args
    wrong = [arg for arg in args if arg.partition("=")[0] in given]
    if not wrong:
        return None
    kept = [f"'{arg}'" for arg in args if arg not in wrong]
    return Finding(
        found=show(wrong),
        wanted="arguments that the launcher does not give itself",
        hints=(f"cluster.srun_args=[{','.join(kept)}]",),
    )


def one_memory_form(subject: Subject) -> Finding | None:
    """Memory is asked for in one way: sbatch refuses --mem beside --mem-per-cpu."""
    others = [n for n in subject.config.cluster.sbatch if spelled(n) in ("mem_per_cpu", "mem_per_gpu")]
    if subject.config.cluster.mem is None or not others:
        return None
    return Finding(
        found=subject.config.cluster.mem, wanted=f"null beside cluster.sbatch.{others[0]}", hints=("cluster.mem=null",)
    )


def _domain(subject: Subject) -> tuple[Shape, int, int]:
    """The shape, the nodes of a domain, and the nodes that whole expert groups fill."""
    shape, domain = derive_shape(subject.config), subject.config.cluster.nodes_per_nvlink_domain
    assert domain, "the row's condition"
    return shape, domain, expert_span(derive_layout(subject.config), ranks_per_node=shape.ranks_per_node)


def segment_divides(subject: Subject) -> Finding | None:
    """The segment divides the nodes and fits a domain."""
    shape, domain, span = _domain(subject)
    assert shape.segment, "the row's condition"
    if shape.nodes % shape.segment == 0 and shape.segment <= domain:
        return None
    return Finding(
        found=show(shape.segment),
        wanted=f"a divisor of the {shape.nodes} nodes, at most the {domain} of a domain",
        arithmetic=f"{shape.nodes} nodes = {shape.nodes // shape.segment} x {shape.segment} + "
        f"{shape.nodes % shape.segment}",
        hints=(f"cluster.segment={best_segment(shape.nodes, domain=domain, span=span)}",),
    )


def _groups_text(subject: Subject) -> str:
    layout, shape = derive_layout(subject.config), derive_shape(subject.config)
    inside, groups = expert_groups_inside(layout, shape=shape)
    return (
        f"{inside} of {groups} expert groups inside one domain: ETP x EP = {expert_group_size(layout)} ranks "
        f"at {shape.ranks_per_node} a node, segments of {shape.segment} node(s)"
    )


def segment_holds_groups(subject: Subject) -> Finding | None:
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


def groups_fit(subject: Subject) -> Finding | None:
    """An expert group fits an NVLink domain."""
    _, domain, span = _domain(subject)
    if span <= domain:
        return None
    return Finding(
        found=show(domain),
        wanted=f"{span} for the expert groups of this layout",
        arithmetic=_groups_text(subject),
    )


def fills_domains(subject: Subject) -> Finding | None:
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


def python_of_image(subject: Subject) -> Finding | None:
    """The interpreter of a container is named."""
    if subject.config.cluster.python is not None:
        return None
    return Finding(found="null", wanted="the interpreter of the image", hints=("cluster.python=python3",))

"""What the rules of `launcher.cluster` find, with the arithmetic: one function a rule. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from itertools import product
from typing import Any

from launcher.keys import as_typed, keys_of
from launcher.requirement import Finding, Subject, show
from launcher.schema.layout import derive_layout
from launcher.slurm.options import BINDING, FREE, KEYS, OWNED, SRUNS, spelled
from launcher.slurm.shape import (
    derive_shape,
    gpu_hours,
    gpus_of,
    num_time_limits,
    ranks_of_full_node,
    ranks_on_gpu,
)
from launcher.suggest import nearest, nearness

_START_S = 60
"""Seconds that a rank may take until submitit handles its signals: the interpreter and the imports."""

_NEARLY = 0.85
"""As alike as licences and licenses."""


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
    """The nodes that were asked for have a GPU for each rank, or for as many as share one."""
    cluster, world = subject.config.cluster, derive_layout(subject.config).world_size
    nodes, ranks, shared = cluster.nodes, ranks_of_full_node(cluster), ranks_on_gpu(cluster)
    assert nodes, "the row's condition"
    if world <= nodes * ranks:
        return None
    room = f"{nodes * ranks} {'GPUs' if shared == 1 else 'ranks'}"
    return Finding(
        found=show(nodes),
        wanted=f"at least {math.ceil(world / max(ranks, 1))}",
        arithmetic=f"{world} ranks > {nodes} node(s) x {cluster.gpus_per_node} GPUs{_times(shared)} = {room}",
        hints=("cluster.nodes=null",),
    )


def whole_nodes(subject: Subject) -> Finding | None:
    """Several nodes are full ones, with as many ranks on each."""
    cluster, world = subject.config.cluster, derive_layout(subject.config).world_size
    gpus, shared, ranks = cluster.gpus_per_node, ranks_on_gpu(cluster), ranks_of_full_node(cluster)
    if world <= ranks or ranks < 1 or world % ranks == 0:
        return None
    fewer = product(range(shared, 0, -1), range(gpus, 0, -1))
    fitting_shared, fitting = next((s, n) for s, n in fewer if world % (s * n) == 0)
    over = "" if shared == 1 else " over cluster.ranks_per_gpu"
    return Finding(
        found=show(gpus),
        wanted=f"a divisor of the ranks{over} where they need several nodes",
        arithmetic=f"{world} ranks = {world // ranks} node(s) x {ranks} + {world % ranks}",
        hints=(
            *((f"cluster.gpus_per_node={fitting}",) if fitting != gpus else ()),
            *((f"cluster.ranks_per_gpu={fitting_shared}",) if fitting_shared != shared else ()),
        ),
    )


def one_machine(subject: Subject) -> Finding | None:
    """A local run has all its GPUs in this machine."""
    cluster, world = subject.config.cluster, derive_layout(subject.config).world_size
    wanted, shared = gpus_of(world, cluster=cluster), ranks_on_gpu(cluster)
    if wanted <= cluster.gpus_per_node:
        return None
    return Finding(
        found=show(cluster.gpus_per_node),
        wanted=f"at least {wanted}, one for each {'rank' if shared == 1 else f'{shared} ranks'}",
        arithmetic=f"{world} ranks on one machine of {cluster.gpus_per_node} GPU(s){_times(shared)}",
        hints=(f"cluster.gpus_per_node={wanted}",),
    )


def _times(shared: int) -> str:
    return "" if shared == 1 else f" x {shared} ranks"


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


def _without_entries(
    entries: Mapping[str, Any], *, wrong: Mapping[str, str], wanted: str, instead: tuple[str, ...] = ()
) -> Finding | None:
    """A finding about the entries of cluster.sbatch in `wrong`, by name with what is wrong; None where there is none.

    An entry cannot be typed away but by ~; `instead` is typed beside it.
    """
    if not wrong:
        return None
    return Finding(
        found=as_typed({name: entries[name] for name in wrong}),
        wanted=wanted,
        arithmetic="; ".join(f"{name}: {words}" for name, words in wrong.items()),
        hints=(*filter(None, instead), *(f"~cluster.sbatch.{name}" for name in wrong)),
    )


def not_owned(subject: Subject) -> Finding | None:
    """cluster.sbatch repeats no key and touches nothing that the launcher sets itself."""
    entries = subject.config.cluster.sbatch
    wrong = {name: OWNED[spelled(name)] for name in entries if spelled(name) in OWNED}
    instead = tuple(_owners_word(spelled(name), value=entries[name]) for name in wrong)
    return _without_entries(entries, wrong=wrong, wanted="options that have no key of their own", instead=instead)


def _owners_word(option: str, *, value: Any) -> str:
    """The override of the option's own key, where the key takes the value as it stands; else empty."""
    name = KEYS.get(option, "")
    key = keys_of().get(name)
    same = option in ("time", "job_name") or name.endswith(f".{option}")
    plain_word = re.fullmatch(r"[\w./-]+", as_typed(value)) is not None
    takes = key is not None and (type(value) is key.type or (key.type is str and type(value) is int))
    return f"{name}={as_typed(value)}" if same and plain_word and takes else ""


def misspelt(subject: Subject) -> Finding | None:
    """An option that sbatch does not know, and nearly does. Others may be a plugin's or a newer Slurm's."""
    entries, names = subject.config.cluster.sbatch, (*FREE, *OWNED)
    meant = {name: nearest(spelled(name), names=names)[0] for name in entries if spelled(name) not in names}
    wrong = {name: near for name, near in meant.items() if nearness(spelled(name), name=near) >= _NEARLY}
    words = {name: OWNED.get(near, f"sbatch has {near}") for name, near in wrong.items()}
    instead = tuple(_instead(near, value=entries[name]) for name, near in wrong.items())
    return _without_entries(entries, wrong=words, wanted="options of sbatch", instead=instead)


def _instead(option: str, *, value: Any) -> str:
    """The word that gives the option its value; empty where it has a key that takes another kind of value."""
    return f"+cluster.sbatch.{option}={as_typed(value)}" if option in FREE else _owners_word(option, value=value)


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


def python_of_image(subject: Subject) -> Finding | None:
    """The interpreter of a container is named."""
    if subject.config.cluster.python is not None:
        return None
    return Finding(found="null", wanted="the interpreter of the image", hints=("cluster.python=python3",))

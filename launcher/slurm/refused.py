"""Nodes that refused an earlier attempt of a run, so that the next one does not get them again.

A rank that blames its own node says so in its error, by the hint that excludes it; nothing else counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from launcher.errors import blame
from launcher.paths import AttemptPaths, RunPaths
from launcher.records import read_ranks
from launcher.schema import RunConfig


def refused_nodes(run: RunPaths) -> tuple[str, ...]:
    """Hosts that a rank on them blamed in any attempt, in alphabetical order."""
    return tuple(sorted({host for attempt in run.attempts() for host in _blamed(attempt)}))


def _blamed(attempt: AttemptPaths) -> Iterator[str]:
    for record in read_ranks(attempt):
        if blame(record.host) in record.error:
            yield record.host


def avoiding(config: RunConfig, *, run: RunPaths) -> RunConfig:
    """The configuration with those nodes among `cluster.exclude`, where `cluster.exclude_refused_nodes` asks for it."""
    cluster = config.cluster
    if not cluster.exclude_refused_nodes:
        return config
    names = [*([] if cluster.exclude is None else [cluster.exclude]), *refused_nodes(run)]
    return replace(config, cluster=replace(cluster, exclude=",".join(names) or None))

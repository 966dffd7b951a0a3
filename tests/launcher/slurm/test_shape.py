"""Nodes, segments and the place of expert groups, against sums done by hand and against every rank counted."""

from itertools import product

import pytest

from launcher.compose import compose
from launcher.schema.layout import derive_layout
from launcher.slurm.shape import (
    best_segment,
    derive_shape,
    expert_groups_inside,
    expert_span,
    is_awkward,
    nearest_good_nodes,
)

GPU = ("platform=hopper", "model=qwen3_moe_1b")
SHARED = (*GPU, "cluster=slurm", "cluster.num_processes=16")


@pytest.mark.parametrize(
    ("words", "nodes", "ranks_per_node", "num_gpus"),
    [
        ((*GPU, "cluster=slurm"), 1, 1, 1),
        ((*GPU, "cluster=slurm", "cluster.exclusive=true"), 1, 1, 8),
        ((*GPU, "cluster=slurm", "cluster.num_processes=16"), 2, 8, 16),
        ((*GPU, "cluster=slurm", "cluster.num_processes=8", "cluster.nodes=2"), 2, 4, 8),
        ((*GPU, "cluster=gb200_nvl72", "parallelism.expert_model_parallel_size=64"), 16, 4, 64),
        ((*SHARED, "cluster.ranks_per_gpu=2"), 1, 16, 8),
        ((*SHARED, "cluster.ranks_per_gpu=3"), 1, 16, 6),
        ((*SHARED, "cluster.ranks_per_gpu=2", "cluster.nodes=2"), 2, 8, 8),
        ((*SHARED, "cluster.ranks_per_gpu=3", "cluster.nodes=2"), 2, 8, 6),
        ((*SHARED, "cluster.ranks_per_gpu=2", "cluster.gpus_per_node=4"), 2, 8, 8),
        ((*SHARED, "cluster.ranks_per_gpu=2", "cluster.nodes=2", "cluster.exclusive=true"), 2, 8, 16),
        ((*SHARED, "cluster.ranks_per_gpu=0"), 2, 8, 16),
        (("cluster=slurm", "parallelism=dp2"), 1, 2, 0),
        (("cluster=local", "parallelism=dp2", "cluster.ranks_per_gpu=2"), 1, 2, 0),
        (("cluster=slurm", "parallelism=dp2", "cluster.nodes=2"), 2, 1, 0),
        (("cluster=local", "parallelism=dp2"), 1, 2, 0),
    ],
)
def test_shape(words: tuple[str, ...], nodes: int, ranks_per_node: int, num_gpus: int) -> None:
    shape = derive_shape(compose(words).config)
    assert (shape.nodes, shape.ranks_per_node, shape.num_gpus) == (nodes, ranks_per_node, num_gpus)


@pytest.mark.parametrize(
    ("nodes", "span", "segment"),
    [
        (2, 1, 2),
        (16, 16, 16),
        (18, 1, 18),
        (20, 1, 10),
        (36, 1, 18),
        (37, 1, 1),
        (32, 16, 16),
        (48, 2, 16),
        (40, 20, 10),
    ],
)
def test_segment_of_an_nvl72(nodes: int, span: int, segment: int) -> None:
    assert best_segment(nodes, domain=18, span=span) == segment


@pytest.mark.parametrize(("nodes", "step", "good"), [(37, 1, 36), (38, 1, 39), (74, 2, 72), (29, 1, 28)])
def test_an_awkward_number_of_nodes(nodes: int, step: int, good: int) -> None:
    assert is_awkward(nodes, domain=18, span=1)
    assert nearest_good_nodes(nodes, domain=18, span=1, step=step) == good


@pytest.mark.parametrize(("nodes", "span"), product(range(1, 80), (1, 2, 4, 16)))
def test_a_segment_divides_the_nodes_and_fits(nodes: int, span: int) -> None:
    segment = best_segment(nodes, domain=18, span=span)
    assert nodes % segment == 0
    assert segment <= 18
    assert nodes % span or segment % span == 0


@pytest.mark.parametrize("expert", [1, 2, 4, 8, 16, 32, 64])
@pytest.mark.parametrize("nodes", [1, 2, 16, 32, 48])
def test_expert_groups_are_counted_right(expert: int, nodes: int) -> None:
    words = (f"parallelism.expert_model_parallel_size={expert}", f"cluster.num_processes={4 * nodes}")
    config = compose((*GPU, "cluster=gb200_nvl72", *words)).config
    layout, shape = derive_layout(config), derive_shape(config)
    domains = [rank // shape.ranks_per_node // (shape.segment or 1) for rank in range(layout.world_size)]
    groups = [domains[i : i + expert] for i in range(0, layout.world_size - expert + 1, expert)]
    assert expert_groups_inside(layout, shape=shape) == (sum(len(set(g)) == 1 for g in groups), len(groups))
    assert nodes % expert_span(layout, ranks_per_node=4) or all(len(set(g)) == 1 for g in groups)

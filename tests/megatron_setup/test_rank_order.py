"""Which ranks share a layer's experts: the launcher's count for the plan against megatron-core's own rank order."""

import inspect

import pytest

from launcher.compose import compose
from launcher.schema.layout import Layout, derive_layout
from launcher.slurm.shape import Shape, derive_shape, expert_groups_inside

pytestmark = pytest.mark.usefixtures("cpu_platform")

GPU = ("platform=blackwell", "model=qwen3_moe_1b")


def groups_of_megatron(layout: Layout) -> list[list[int]]:
    """The ranks of every expert group, ETP x EP, in the order that `initialize_model_parallel` takes by itself."""
    from megatron.core.parallel_state import RankGenerator, initialize_model_parallel

    ranks = RankGenerator(
        tp=layout.expert_tensor_parallel_size,
        ep=layout.expert_model_parallel_size,
        dp=layout.expert_data_parallel_size,
        pp=layout.pipeline_model_parallel_size,
        cp=1,
        order=inspect.signature(initialize_model_parallel).parameters["order"].default,
    )
    return ranks.get_ranks("tp-ep")


def inside(group: list[int], *, shape: Shape) -> bool:
    """All ranks of the group on nodes of one segment; consecutive ranks share a node, as srun's block has it."""
    return len({rank // shape.ranks_per_node // (shape.segment or 1) for rank in group}) == 1


def words(tensor: int, pipeline: int, expert: int, expert_tensor: int, world: int) -> tuple[str, ...]:
    return (
        f"parallelism.tensor_model_parallel_size={tensor}",
        f"parallelism.pipeline_model_parallel_size={pipeline}",
        f"parallelism.expert_model_parallel_size={expert}",
        f"parallelism.expert_tensor_parallel_size={expert_tensor}",
        f"cluster.num_processes={world}",
    )


@pytest.mark.parametrize("cluster", ["gb200_nvl72", "slurm"])
@pytest.mark.parametrize(
    "sizes",
    [
        (1, 1, 16, 1, 64),
        (1, 1, 64, 1, 64),
        (1, 1, 64, 1, 128),
        (2, 1, 8, 1, 32),
        (4, 2, 8, 2, 64),
        (1, 4, 8, 1, 64),
        (8, 1, 4, 4, 64),
        (2, 2, 32, 2, 256),
        (1, 1, 128, 1, 128),
        (1, 3, 16, 1, 144),
        (1, 3, 4, 1, 36),
        (1, 1, 12, 1, 48),
    ],
)
def test_the_plans_count_is_megatrons(sizes: tuple[int, int, int, int, int], cluster: str) -> None:
    config = compose((*GPU, f"cluster={cluster}", *words(*sizes))).config
    layout, shape = derive_layout(config), derive_shape(config)
    groups = groups_of_megatron(layout)
    assert sorted(rank for group in groups for rank in group) == list(range(layout.world_size))
    assert expert_groups_inside(layout, shape=shape) == (sum(inside(g, shape=shape) for g in groups), len(groups))


def test_bridge_leaves_the_order_to_megatron() -> None:
    from megatron.bridge.models import model_provider

    assert "order=" not in inspect.getsource(model_provider.ModelProviderMixin.initialize_model_parallel)

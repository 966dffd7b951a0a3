"""Experts between other expert-parallel sizes: without a row a refit is refused by upstream, or silently wrong.

That all rows together are right is in `test_inference_model.py`.
"""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.tiny_runs import Checkpoint, built, converted, unfinalized
from tests.worlds import run_world

pytestmark = pytest.mark.usefixtures("cpu_platform")

RANKS = range(4)


def _grouped_weight(rank: int, *, local: int, experts_of: Sequence[int]) -> Any:
    """An expert's weight as Transformer Engine's grouped linear has it on a rank, where experts are spread."""
    import torch
    from megatron.core.resharding.utils import ParameterMetadata, assign_resolved_name_inplace

    meta = ParameterMetadata(
        name=f"experts.linear_fc1.weight{local}",
        shape=(2, 2),
        dtype=torch.bfloat16,
        element_size=2,
        is_ep=True,
        num_experts=4,
        owner_rank=rank,
        tensor_parallel_group_ranks=[rank],
        expert_parallel_group_ranks=list(experts_of),
        data_parallel_group_ranks=list(RANKS),
    )
    assign_resolved_name_inplace(meta)
    return meta


def _sources() -> list[list[int]]:
    """For each of four ranks, whom it gets its two experts from: EP 4, an expert each, becomes EP 2."""
    from megatron.core.resharding.planner import build_plan_from_rosters

    training = [_grouped_weight(rank, local=0, experts_of=RANKS) for rank in RANKS]
    generation = {
        rank: [_grouped_weight(rank, local=local, experts_of=(0, 1) if rank < 2 else (2, 3)) for local in (0, 1)]
        for rank in RANKS
    }
    src = {meta.resolved_name: [meta] for meta in training}
    dst = {rank: {meta.resolved_name: meta for meta in metas} for rank, metas in generation.items()}
    return [[op.peer_rank for op in build_plan_from_rosters(dst, src, rank).recv_ops] for rank in RANKS]


def test_an_expert_comes_from_the_rank_that_has_it() -> None:
    from launcher.patches import applied
    from megatron_setup.resharding_patches import EXPERTS

    assert _sources() == [[0, 0], [1, 1], [2, 2], [3, 3]], "upstream asks each rank itself, which has another expert"
    with applied(EXPERTS):
        assert _sources() == [[0, 1], [2, 3], [0, 1], [2, 3]]
    assert _sources()[0] == [0, 0]


@pytest.fixture(scope="module")
def checkpoint(cpu_platform: None, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return converted(["model=tiny_moe"], folder=tmp_path_factory.mktemp("moe"))


def _refusals(checkpoint: Checkpoint) -> list[str]:
    """Upstream's words about SequentialMLP's experts, EP 2 to EP 1, without each of the two rows about their names."""
    from megatron.core.resharding import swap_model_weights

    from launcher.patches import applied
    from megatron_setup.inference_model import build_inference_model
    from megatron_setup.resharding_patches import EXPERTS

    run = built(["parallelism=ep2", "generation.expert_model_parallel_size=1"], checkpoint=checkpoint)
    second: Any = build_inference_model(run.config, snapshot=unfinalized(run.config, checkpoint=checkpoint))
    model: Any = run.model
    texts: list[str] = []
    for left_out in (1, 2):
        rows = [row for i, row in enumerate(EXPERTS) if i != left_out]
        with applied(rows), pytest.raises(RuntimeError) as caught:
            swap_model_weights(model, second, "gloo")
        texts.append(str(caught.value))
    return texts


def test_experts_of_a_sequence_need_their_names(checkpoint: Checkpoint) -> None:
    for texts in run_world(_refusals, num_ranks=2, checkpoint=checkpoint):
        assert all("local_experts.2" in text and "not found in source model" in text for text in texts)

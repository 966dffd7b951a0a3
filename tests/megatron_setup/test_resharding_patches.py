"""Experts between other expert-parallel sizes: without a row the refit is refused upstream, or silently wrong."""

import pytest

from tests.tiny_runs import Checkpoint, bits, built, converted
from tests.worlds import run_world

pytestmark = pytest.mark.usefixtures("cpu_platform")

WORDS = ["parallelism=ep2", "generation.expert_model_parallel_size=1"]


@pytest.fixture(scope="module")
def checkpoint(cpu_platform: None, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return converted(["model=tiny_moe"], folder=tmp_path_factory.mktemp("moe"))


def _refit(checkpoint: Checkpoint, *, left_out: int | None) -> dict[str, str] | str:
    """The weights of generation's model, or upstream's refusal."""
    from megatron.core.resharding import swap_model_weights

    from launcher.patches import applied
    from megatron_setup.inference_model import build_inference_model
    from megatron_setup.resharding_patches import EXPERTS
    from tests.tiny_runs import unfinalized

    run = built(WORDS, checkpoint=checkpoint)
    second = build_inference_model(run.config, snapshot=unfinalized(run.config, checkpoint=checkpoint))
    try:
        with applied([row for i, row in enumerate(EXPERTS) if i != left_out]):
            swap_model_weights(run.model, second, "gloo")
    except RuntimeError as error:
        return str(error)
    return bits([second])


def _directly(checkpoint: Checkpoint) -> dict[str, str]:
    return bits(built([], checkpoint=checkpoint).model)


def test_every_row_is_needed(checkpoint: Checkpoint) -> None:
    (wanted,) = run_world(_directly, num_ranks=1, checkpoint=checkpoint)
    whole, no_owner, no_index, no_name = (
        run_world(_refit, num_ranks=2, checkpoint=checkpoint, left_out=i) for i in (None, 0, 1, 2)
    )
    assert whole == [wanted, wanted]
    for rank, found in enumerate(no_owner):
        assert isinstance(found, dict)
        wrong = {name for name, value in found.items() if value != wanted[name]}
        others = {2, 3} if rank == 0 else {0, 1}
        assert wrong
        assert {int(name.split("local_experts.")[1].split(".")[0]) for name in wrong} == others
    assert all("not found in source model" in str(found) for found in (*no_index, *no_name))

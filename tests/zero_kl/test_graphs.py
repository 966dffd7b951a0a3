"""What an engine's graphs leave behind: a model that is as it was. Capturing itself needs a GPU."""

import pytest

from tests.tiny_runs import Checkpoint, built, converted
from tests.worlds import run_world

pytestmark = pytest.mark.usefixtures("cpu_platform")


@pytest.fixture(scope="module")
def checkpoint(cpu_platform: None, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A converted tiny dense model."""
    return converted([], folder=tmp_path_factory.mktemp("checkpoint"))


def _owners_inside_and_after(checkpoint: Checkpoint, *, scope: str, fails: bool) -> tuple[int, int, list[str]]:
    """How many modules have graphs inside the block and after it; the model's field before, inside and after it."""
    import torch
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    from megatron.core.utils import unwrap_model

    from zero_kl.graphs import capturable

    model = unwrap_model(built([], checkpoint=checkpoint).model[0])
    torch.cuda.set_stream = lambda stream: None  # the CPU platform has no streams
    # a random state that a graph can hold; Transformer Engine's is not here
    model_parallel_cuda_manual_seed(1, inference_rng_tracker=True, force_reset_rng=True)

    def owners() -> int:
        return sum(hasattr(module, "cudagraph_manager") for module in model.modules())

    impls, inside = [model.config.cuda_graph_impl], 0
    impl = "none" if scope == "none" else "local"
    try:
        with capturable(model, fields={"cuda_graph_impl": impl, "inference_cuda_graph_scope": scope}):
            impls.append(model.config.cuda_graph_impl)
            inside = owners()
            if fails:
                raise KeyError
    except KeyError:
        assert fails
    impls.append(model.config.cuda_graph_impl)
    return inside, owners(), impls


@pytest.mark.parametrize("fails", [False, True], ids=["ends", "fails"])
@pytest.mark.parametrize(("scope", "owners"), [("layer", 4), ("block", 1)])
def test_graphs_live_as_long_as_the_block(scope: str, owners: int, fails: bool, checkpoint: Checkpoint) -> None:
    (found,) = run_world(_owners_inside_and_after, num_ranks=1, checkpoint=checkpoint, scope=scope, fails=fails)
    assert found == (owners, 0, ["none", "local", "none"])


def test_no_graphs_change_nothing(checkpoint: Checkpoint) -> None:
    (found,) = run_world(_owners_inside_and_after, num_ranks=1, checkpoint=checkpoint, scope="none", fails=False)
    assert found == (0, 0, ["none"] * 3)

"""What an engine's graphs leave behind: a model that is as it was. Capturing itself needs a GPU."""

from pathlib import Path
from typing import Any

import pytest

from tests.worlds import run_world

pytestmark = pytest.mark.usefixtures("cpu_platform")


def _decoder(folder: Path) -> Any:
    """A tiny model, whose random state is of the kind that a graph can hold."""
    from launcher.compose import compose
    from megatron_setup.convert import convert_with_bridge
    from megatron_setup.model_import import newest_iteration
    from megatron_setup.random_model import make_random_hf_model

    config = compose([]).config
    make_random_hf_model(folder / "hf", hf_config=config.model.hf_config, dtype="bfloat16", seed=0)
    convert_with_bridge(config, source=folder / "hf", target=folder / "megatron")
    from megatron.bridge.training.model_load_save import load_model_config

    provider: Any = load_model_config(str(newest_iteration(folder / "megatron")))[0]
    provider.initialize_model_parallel(seed=1, seed_kwargs={"inference_rng_tracker": True, "force_reset_rng": True})
    return provider.provide_distributed_model(wrap_with_ddp=False)[0]


def _owners_inside_and_after(folder: Path, *, scope: str, fails: bool) -> tuple[int, int, list[str]]:
    """How many modules have graphs inside the block and after it; the model's fields before, inside and after it."""
    from megatron.core.utils import unwrap_model

    from zero_kl.graphs import capturable

    model = unwrap_model(_decoder(folder))

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
@pytest.mark.parametrize(("scope", "owners"), [("layer", 2), ("block", 1)])
def test_graphs_live_as_long_as_the_block(scope: str, owners: int, fails: bool, tmp_path: Path) -> None:
    (found,) = run_world(_owners_inside_and_after, num_ranks=1, folder=tmp_path, scope=scope, fails=fails)
    assert found == (owners, 0, ["none", "local", "none"])


def test_no_graphs_change_nothing(tmp_path: Path) -> None:
    (found,) = run_world(_owners_inside_and_after, num_ranks=1, folder=tmp_path, scope="none", fails=False)
    assert found == (0, 0, ["none"] * 3)

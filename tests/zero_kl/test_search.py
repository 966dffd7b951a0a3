"""The search on real Megatron: with one operation's invariance taken away it names that operation."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from tests.tiny_runs import Checkpoint, built, converted
from tests.worlds import run_world
from zero_kl.evidence import Search

pytestmark = pytest.mark.usefixtures("cpu_platform")

FP32 = "precision=fp32"


@pytest.fixture(scope="module")
def dense(cpu_platform: None, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return converted(["model=tiny", FP32], folder=tmp_path_factory.mktemp("dense"))


@pytest.fixture(scope="module")
def experts(cpu_platform: None, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return converted(["model=tiny_moe", FP32], folder=tmp_path_factory.mktemp("experts"))


@contextmanager
def sound(model: Any) -> Iterator[None]:
    """All of the CPU's batch-invariant kernels."""
    from megatron_setup.cpu.attention import use_core
    from zero_kl.cpu_kernels import attention, batch_invariant

    with batch_invariant(), use_core(attention):
        yield


@contextmanager
def ordered(model: Any) -> Iterator[None]:
    """And sums over tensor-parallel ranks in the order of the ranks."""
    from launcher.patches import applied
    from zero_kl.kernels.reduction import MCORE_PATCHES

    with sound(model), applied(MCORE_PATCHES):
        yield


@contextmanager
def ordinary_attention(model: Any) -> Iterator[None]:
    from zero_kl.cpu_kernels import batch_invariant

    with batch_invariant():
        yield


@contextmanager
def ordinary_products(model: Any) -> Iterator[None]:
    """A step's rows are filled up to 32, which MKL computes as it does more; the head's rows are its requests."""
    from zero_kl import cpu_kernels

    with pytest.MonkeyPatch.context() as monkey:
        monkey.delitem(cpu_kernels._KERNELS, "mm")
        with sound(model):
            yield


@contextmanager
def spoiled(name: str, model: Any) -> Iterator[None]:
    """One module's output depends, in its last bits, on the number of rows."""

    def spoil(_: Any, __: Any, out: Any) -> Any:
        first, *rest = out if isinstance(out, tuple) else (out,)
        changed = first * (1 + 2**-20 * (first.shape[0] * first.shape[1] % 5))
        return (changed, *rest) if rest else changed

    handle = model.get_submodule(name).register_forward_hook(spoil)
    try:
        with sound(model):
            yield
    finally:
        handle.remove()


@contextmanager
def spoiled_projection(model: Any) -> Iterator[None]:
    with spoiled("decoder.layers.2.self_attention.linear_proj", model):
        yield


@contextmanager
def spoiled_router(model: Any) -> Iterator[None]:
    with spoiled("decoder.layers.1.mlp.router", model):
        yield


@contextmanager
def spoiled_experts(model: Any) -> Iterator[None]:
    with spoiled("decoder.layers.3.mlp.experts", model):
        yield


@contextmanager
def spoiled_combine(model: Any) -> Iterator[None]:
    with spoiled("decoder.layers.0.mlp", model):
        yield


@contextmanager
def spoiled_head(model: Any) -> Iterator[None]:
    with spoiled("output_layer", model):
        yield


def _search(checkpoint: Checkpoint, *, kernels: Callable[[Any], Any], words: Sequence[str] = ()) -> Search:
    from megatron.bridge.inference.text_generation import HFTokenizerAdapter
    from megatron.core import parallel_state
    from megatron.core.utils import unwrap_model
    from transformers import AutoTokenizer

    from zero_kl.search import Runs, search

    run = built(words, checkpoint=checkpoint)
    tokenizer = HFTokenizerAdapter(AutoTokenizer.from_pretrained(str(checkpoint.hf)))
    prompts = [[3 + i + 7 * j for j in range(5 + 3 * i)] for i in range(5)]
    sequences = [[*p, 11, 12, 13, 14] for p in prompts]
    with ExitStack() as stack:
        stack.enter_context(kernels(unwrap_model(run.model)[0]))
        runs = Runs(model=run.model, config=run.config, tokenizer=tokenizer)
        found = search(runs, prompts=prompts, sequences=sequences, failing=1)
    parallel_state.destroy_model_parallel()
    return found


def test_sound_kernels_show_nothing(dense: Checkpoint, experts: Checkpoint) -> None:
    for checkpoint in (dense, experts):
        (found,) = run_world(_search, num_ranks=1, checkpoint=checkpoint, kernels=sound)
        assert found == Search(says="nothing differed when it was run again without CUDA graphs")


@pytest.mark.parametrize(
    ("kernels", "point"),
    [
        (ordinary_attention, "layer 1, self_attention.core_attention"),
        (ordinary_products, "output_layer"),
        (spoiled_projection, "layer 3, self_attention.linear_proj"),
        (spoiled_head, "output_layer"),
    ],
)
def test_the_one_operation_is_named(dense: Checkpoint, kernels: Callable[[Any], Any], point: str) -> None:
    (found,) = run_world(_search, num_ranks=1, checkpoint=dense, kernels=kernels)
    assert found.found is not None
    assert found.found.point == point
    assert 0 < found.found.num_differing <= found.found.num_compared
    assert found.found.max_abs_diff > 0


@pytest.mark.parametrize(
    ("kernels", "point"),
    [
        (spoiled_router, "layer 2, mlp.router"),
        (spoiled_experts, "layer 4, mlp.experts"),
        (spoiled_combine, "layer 1, mlp.combine"),
    ],
)
def test_the_one_operation_of_experts_is_named(experts: Checkpoint, kernels: Callable[[Any], Any], point: str) -> None:
    (found,) = run_world(_search, num_ranks=1, checkpoint=experts, kernels=kernels)
    assert found.found is not None
    assert found.found.point == point


def test_every_rank_finds_the_same(dense: Checkpoint) -> None:
    words = ["parallelism.tensor_model_parallel_size=2"]
    one, other = run_world(_search, num_ranks=2, checkpoint=dense, kernels=ordinary_attention, words=words)
    assert one == other
    assert one.found is not None
    assert one.found.point.endswith("core_attention")


def test_the_ring_of_four_tensor_parallel_ranks_is_named(dense: Checkpoint) -> None:
    """And where ranks add in their order nothing differs, though training's logits are a rank's share of them."""
    words = ["parallelism.tensor_model_parallel_size=4"]
    for found in run_world(_search, num_ranks=4, checkpoint=dense, kernels=sound, words=words, timeout_s=180.0):
        assert found.found is not None
        assert found.found.point == "layer 1, self_attention.linear_proj"
    for found in run_world(_search, num_ranks=4, checkpoint=dense, kernels=ordered, words=words, timeout_s=180.0):
        assert found == Search(says="nothing differed when it was run again without CUDA graphs")


def test_pipeline_stages_are_not_searched(dense: Checkpoint) -> None:
    words = ["parallelism.pipeline_model_parallel_size=2"]
    for found in run_world(_search, num_ranks=2, checkpoint=dense, kernels=sound, words=words):
        assert found == Search(says="not searched: the layers are spread over pipeline stages")


def test_the_case_is_cut_to_what_computes_the_position() -> None:
    from zero_kl.search import Case

    sampled = Case(prompts=((1, 2, 3), (4, 5, 6, 7)), new_tokens=9)
    assert sampled.up_to(1) == Case(prompts=((1, 2), (4, 5)), new_tokens=1)
    assert sampled.up_to(2) == Case(prompts=((1, 2, 3), (4, 5, 6)), new_tokens=1)
    assert sampled.up_to(4) == Case(prompts=sampled.prompts, new_tokens=3)
    assert Case(prompts=((1, 2, 3, 4),), new_tokens=0).up_to(1) == Case(prompts=((1, 2, 3),), new_tokens=0)

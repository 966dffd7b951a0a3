"""Our verdict on thousands of layouts against what the real Megatron-Bridge and megatron-core do with them.

One process pretends a world of N ranks (torch's fake process group), so that process groups, configuration and model
are upstream's own. A difference is allowed only where `EXPLAINED` has an entry, and every entry must still be needed.
"""

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest

from launcher.requirement import Severity, Subject, check_all
from launcher.schema import Architecture, JobKind
from launcher.schema.layout import derive_layout
from megatron_setup import cpu
from megatron_setup.layout.nearest import with_values
from megatron_setup.parallelism import ROWS, provider_fields
from tests.megatron_setup.example_layouts import DENSE, MOE, plain_config

REFUSALS = (AssertionError, ValueError, RuntimeError, ZeroDivisionError)


@dataclass(frozen=True, kw_only=True)
class Upstream:
    """What upstream did: the error it raised, else what it did silently. Both empty: it does what was asked."""

    refused: str = ""
    silent: str = ""


@dataclass(frozen=True, kw_only=True)
class Explained:
    """A difference we want, with the reason."""

    why: str
    applies: Callable[[frozenset[str], Upstream], bool]


EXPLAINED = {
    "sequence parallelism that Bridge turns off": Explained(
        why="megatron-core refuses it at TP 1, but Bridge's finalize() rewrites it before megatron-core looks",
        applies=lambda codes, upstream: codes == {"PL070"} and upstream.silent == "sequence_parallel is off",
    ),
    "stages that lose layers": Explained(
        why="a first and last stage that do not add up pass every assert where the middle has fewer than 0 stages or "
        "layers, and a model with other layers is built; 0 virtual stages hold none",
        applies=lambda codes, upstream: codes <= {"PL003", "PL050", "PL051"} and upstream.silent == "other layers are built",
    ),
    "a virtual size that megatron-core fills in": Explained(
        why="with a written layout and a null virtual size megatron-core takes stages / PP, so the schedule changes",
        applies=lambda codes, upstream: codes == {"PL053"} and upstream.silent == "the schedule is interleaved",
    ),
    "0 read as 1": Explained(
        why="Bridge hands `size or 1` to megatron-core for CP and EP; here 0 is a mistake",
        applies=lambda codes, upstream: codes <= {"PL004", "PL005"} and upstream.silent == "a 0 is read as 1",
    ),
}


@pytest.fixture(scope="module", autouse=True)
def megatron() -> Iterator[None]:
    """The CPU platform, without upstream's notices; no process group is left behind."""
    cpu.install()
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)
    _leave()


def _leave() -> None:
    import torch.distributed
    from megatron.core import parallel_state

    if parallel_state.is_initialized():
        parallel_state.destroy_model_parallel()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _join(world_size: int) -> None:
    import torch.distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)


def _provider(subject: Subject) -> Any:
    """Bridge's provider for the shape, as a checkpoint conversion makes it, with the layout's fields set."""
    import torch
    from megatron.bridge.models.gpt_provider import GPTModelProvider

    shape = subject.architecture
    assert shape is not None
    provider = GPTModelProvider(
        num_layers=shape.num_layers,
        hidden_size=shape.hidden_size,
        num_attention_heads=shape.num_attention_heads,
        num_query_groups=shape.num_query_groups,
        kv_channels=shape.kv_channels,
        ffn_hidden_size=shape.ffn_hidden_size,
        vocab_size=shape.vocab_size,
        num_moe_experts=shape.num_moe_experts,
        moe_ffn_hidden_size=shape.moe_ffn_hidden_size,
        moe_token_dispatcher_type="alltoall",
        seq_length=subject.config.model.seq_length,
        position_embedding_type="rope",
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        share_embeddings_and_output_weights=shape.share_embeddings_and_output_weights,
        gradient_accumulation_fusion=False,
        use_cpu_initialization=True,
        perform_initialization=False,
        init_model_with_meta_device=True,
    )
    for name, value in provider_fields(subject.config).items():
        assert hasattr(provider, name), name
        setattr(provider, name, value)
    return provider


def _make_groups(provider: Any, *, world_size: int) -> None:
    """Real `initialize_model_parallel`, with the arguments Bridge gives it."""
    _leave()
    _join(world_size)
    provider.initialize_model_parallel(create_gloo_process_groups=False)


def _layers_of_every_stage(provider: Any) -> list[int]:
    """What megatron-core would build, chunk by chunk."""
    from megatron.core.transformer.transformer_block import get_num_layers_to_build

    virtual = provider.virtual_pipeline_model_parallel_size
    chunks = [None] if virtual is None else range(virtual)
    if provider.pipeline_model_parallel_layout is not None:
        layout = provider.pipeline_model_parallel_layout
        return [layout.get_num_layers_to_build(vp_stage=c, pp_rank=r) for r, c in _stages(provider, chunks=chunks)]
    return [get_num_layers_to_build(provider, vp_stage=c, pp_rank=r) for r, c in _stages(provider, chunks=chunks)]


def _stages(provider: Any, *, chunks: Any) -> list[tuple[int, int | None]]:
    return list(product(range(provider.pipeline_model_parallel_size), chunks))


def _build_first_stage(provider: Any) -> None:
    """The real model of rank 0 on the meta device: embedding, attention, MLP, experts, output layer."""
    from megatron.core.process_groups_config import ProcessGroupCollection

    provider._pg_collection = ProcessGroupCollection.use_mpu_process_groups()
    provider.provide(
        pre_process=True, post_process=True, vp_stage=0 if provider.virtual_pipeline_model_parallel_size else None
    )


def _cut_a_sequence(provider: Any) -> None:
    """What the training forward does to a batch's tokens and to hidden states."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import scatter_to_sequence_parallel_region
    from megatron.core.utils import get_batch_on_this_cp_rank

    batch = {"tokens": torch.zeros(1, provider.seq_length, dtype=torch.int64)}
    group = parallel_state.get_context_parallel_group()
    tokens = get_batch_on_this_cp_rank(batch, False, cp_group=group)["tokens"]
    if provider.sequence_parallel:
        scatter_to_sequence_parallel_region(tokens.transpose(0, 1).float())


class Oracle:
    """Upstream's verdict; the model of rank 0 is built once for each way its matrices can be cut."""

    def __init__(self) -> None:
        self.built: dict[tuple[Any, ...], str] = {}

    def ask(self, subject: Subject) -> Upstream:
        """Run upstream's own steps, in the order a run takes them."""
        parallelism = subject.config.parallelism
        provider = _provider(subject)
        try:
            provider.finalize()
            _make_groups(provider, world_size=derive_layout(subject.config).world_size)
            layers = _layers_of_every_stage(provider)
            _cut_a_sequence(provider)
        except REFUSALS as error:
            return Upstream(refused=f"{type(error).__name__}: {error}")
        refused = self._build(provider, shape=subject.architecture)
        if refused:
            return Upstream(refused=refused)
        if min(layers, default=0) < 0 or sum(layers) != provider.num_layers:
            return Upstream(silent="other layers are built")
        if parallelism.sequence_parallel and not provider.sequence_parallel:
            return Upstream(silent="sequence_parallel is off")
        if parallelism.virtual_pipeline_model_parallel_size != provider.virtual_pipeline_model_parallel_size:
            return Upstream(silent="the schedule is interleaved")
        if 0 in (parallelism.context_parallel_size, parallelism.expert_model_parallel_size):
            return Upstream(silent="a 0 is read as 1")
        return Upstream()

    def _build(self, provider: Any, *, shape: Architecture | None) -> str:
        key = (
            shape,
            provider.tensor_model_parallel_size,
            provider.context_parallel_size,
            provider.expert_model_parallel_size,
            provider.expert_tensor_parallel_size,
            provider.sequence_parallel,
        )
        if key not in self.built:
            try:
                _build_first_stage(provider)
                self.built[key] = ""
            except REFUSALS as error:
                self.built[key] = f"{type(error).__name__}: {error}"
        return self.built[key]


def _subject(shape: Architecture, *, values: dict[str, Any]) -> Subject:
    """A `setup` job: what the engine and the prompts add has tests of its own."""
    return Subject(config=with_values(plain_config(JobKind.setup), values=values), architecture=shape)


def _grid() -> list[dict[str, Any]]:
    """Everything about ranks, crossed; sequence lengths in turn."""
    sizes = product((1, 2, 3, 4, 6, 8, 12), (1, 2, 3, 4, 6, 12), (1, 2, 3, 4), (None, 1, 2, 3), (1, 2, 3), (1, 2, 3, 4))
    lengths = (128, 96, 90, 64, 63)
    return [
        {
            "cluster.num_processes": world,
            "parallelism.tensor_model_parallel_size": tensor,
            "parallelism.pipeline_model_parallel_size": pipeline,
            "parallelism.virtual_pipeline_model_parallel_size": virtual,
            "parallelism.context_parallel_size": context,
            "parallelism.expert_model_parallel_size": expert,
            "parallelism.expert_tensor_parallel_size": expert_tensor,
            "parallelism.sequence_parallel": sequence,
            "model.seq_length": lengths[i % len(lengths)],
        }
        for i, ((world, tensor, pipeline, virtual, context, expert), expert_tensor, sequence) in enumerate(
            product(sizes, (None, 1, 2), (False, True))
        )
    ]


def _splits() -> list[dict[str, Any]]:
    """Everything about stages, crossed, each in a world that fits."""
    ends = (None, 0, 1, 2, 3, 5, 7)
    return [
        {
            "parallelism.pipeline_model_parallel_size": pipeline,
            "parallelism.virtual_pipeline_model_parallel_size": virtual,
            "parallelism.num_layers_in_first_pipeline_stage": first,
            "parallelism.num_layers_in_last_pipeline_stage": last,
            "parallelism.account_for_embedding_in_pipeline_split": embedding,
            "parallelism.account_for_loss_in_pipeline_split": loss,
        }
        for pipeline, virtual, first, last, embedding, loss in product(
            (1, 2, 3, 4, 5), (None, 1, 2), ends, ends, (False, True), (False, True)
        )
    ]


def _written() -> list[dict[str, Any]]:
    layouts = (
        "Et*8L",
        "Et*4|t*4L",
        "Et*3|t*3|t|tL",
        "E|(t|)*8,L",
        "Et*2|t*2|t*2|t*2L",
        "Et*6|L",
        "t*8|EL",
        "Et*8m|L",
        "Ex|L",
    )
    return [
        {
            "parallelism.pipeline_model_parallel_layout": layout,
            "parallelism.pipeline_model_parallel_size": pipeline,
            "parallelism.virtual_pipeline_model_parallel_size": virtual,
            "parallelism.num_layers_in_first_pipeline_stage": first,
            "parallelism.account_for_loss_in_pipeline_split": loss,
        }
        for layout, pipeline, virtual, first, loss in product(
            layouts, (1, 2, 4, 5), (None, 1, 2), (None, 2), (False, True)
        )
    ]


def _zeros() -> list[dict[str, Any]]:
    names = ("tensor_model", "pipeline_model", "virtual_pipeline_model", "context", "expert_model", "expert_tensor")
    return [
        {
            "cluster.num_processes": 4,
            "parallelism.pipeline_model_parallel_size": 2,
            f"parallelism.{name}_parallel_size": 0,
        }
        for name in names
    ]


SWEEPS = {
    "ranks, dense": (DENSE, lambda: random.Random(0).sample(_grid(), 4000)),
    "ranks, MoE": (MOE, lambda: random.Random(1).sample(_grid(), 4000)),
    "stages": (DENSE, _splits),
    "written stages": (DENSE, _written),
    "zeros": (MOE, _zeros),
}


def _difference(codes: frozenset[str], *, upstream: Upstream) -> str | None:
    """None where we agree, the name of the entry that explains a difference, or what is unexplained."""
    if bool(codes) == bool(upstream.refused):
        return None
    for name, entry in EXPLAINED.items():
        if not upstream.refused and entry.applies(codes, upstream):
            return name
    return f"UNEXPLAINED: ours {sorted(codes) or 'fits'}, upstream {upstream.refused or upstream.silent or 'fits'}"


@pytest.fixture(scope="module")
def verdicts() -> dict[str, Counter[str]]:
    """For each sweep: how often we agree on fits and refused, and how often we differ in which way."""
    oracle, found = Oracle(), dict[str, Counter[str]]()
    for name, (shape, layouts) in SWEEPS.items():
        counts = found[name] = Counter[str]()
        for values in layouts():
            subject = _subject(shape, values=values)
            errors = [v for v in check_all(ROWS, subject=subject) if v.row.severity is Severity.ERROR]
            codes = frozenset(v.row.code for v in errors)
            upstream = oracle.ask(subject)
            difference = _difference(codes, upstream=upstream)
            key = difference or ("both refuse" if codes else "both fit")
            counts[f"{key} for {values}" if key.startswith("UNEXPLAINED") else key] += 1
    return found


@pytest.mark.slow
@pytest.mark.parametrize("sweep", SWEEPS)
def test_verdicts_agree(sweep: str, verdicts: dict[str, Counter[str]]) -> None:
    counts = verdicts[sweep]
    unexplained = [text for text in counts if text.startswith("UNEXPLAINED")]
    assert not unexplained, "\n".join(unexplained[:10])
    assert counts["both refuse"] > 0


@pytest.mark.slow
def test_the_sweeps_are_large_and_have_both_kinds(verdicts: dict[str, Counter[str]]) -> None:
    total = sum(verdicts.values(), Counter())
    print(dict(total))
    assert total["both fit"] > 200
    assert total["both fit"] + total["both refuse"] > 9000


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPLAINED)
def test_every_explanation_is_needed(name: str, verdicts: dict[str, Counter[str]]) -> None:
    assert sum(verdicts.values(), Counter())[name] > 0

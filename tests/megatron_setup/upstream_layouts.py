"""What the real Megatron-Bridge and megatron-core do with a layout, asked in one process.

torch's fake process group lets it pretend to be rank 0 of N, so that process groups, configuration and model are
upstream's own code on upstream's own types. Needs the CPU platform installed.
"""

from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from torch.testing._internal.distributed.fake_pg import FakeStore

from launcher.requirement import Subject
from launcher.schema import Architecture
from launcher.schema.layout import derive_layout
from megatron_setup.parallelism import provider_fields

REFUSALS = (AssertionError, ValueError, RuntimeError, ZeroDivisionError)


@dataclass(frozen=True, kw_only=True)
class Upstream:
    """What upstream did: the error it raised, else what it did silently. Both empty: it does what was asked."""

    refused: str = ""
    silent: str = ""


def leave_world() -> None:
    """Drop the process groups, where there are any."""
    from megatron.core import parallel_state

    if parallel_state.is_initialized():
        parallel_state.destroy_model_parallel()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _join(world_size: int) -> None:
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)


def make_provider(subject: Subject) -> Any:
    """Bridge's provider for the shape, as a checkpoint conversion makes it, with the layout's fields set."""
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


def make_groups(provider: Any, *, world_size: int) -> None:
    """Real `initialize_model_parallel`, with the arguments Bridge gives it."""
    leave_world()
    _join(world_size)
    provider.initialize_model_parallel(create_gloo_process_groups=False)


def _layers_of_every_stage(provider: Any) -> list[int]:
    """What megatron-core would build, chunk by chunk."""
    from megatron.core.transformer.transformer_block import get_num_layers_to_build

    virtual = provider.virtual_pipeline_model_parallel_size
    chunks = [None] if virtual is None else range(virtual)
    written = provider.pipeline_model_parallel_layout
    count = partial(get_num_layers_to_build, provider) if written is None else written.get_num_layers_to_build
    stages = product(range(provider.pipeline_model_parallel_size), chunks)
    return [count(vp_stage=chunk, pp_rank=rank) for rank, chunk in stages]


def build_first_stage(provider: Any) -> Any:
    """The real model of rank 0 on the meta device: embedding, attention, MLP, experts, output layer."""
    from megatron.core.process_groups_config import ProcessGroupCollection

    provider._pg_collection = ProcessGroupCollection.use_mpu_process_groups()
    return provider.provide(
        pre_process=True, post_process=True, vp_stage=0 if provider.virtual_pipeline_model_parallel_size else None
    )


def _cut_a_sequence(provider: Any) -> None:
    """What the training forward does to a batch's tokens and to hidden states."""
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
        provider = make_provider(subject)
        try:
            provider.finalize()
            make_groups(provider, world_size=derive_layout(subject.config).world_size)
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
                build_first_stage(provider)
                self.built[key] = ""
            except REFUSALS as error:
                self.built[key] = f"{type(error).__name__}: {error}"
        return self.built[key]

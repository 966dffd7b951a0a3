"""A tiny GPT trained by megatron-core itself in any parallel layout, from a checkpoint that one rank wrote.

Import only after the CPU platform is installed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.optimizer import MegatronOptimizer, OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import TransformerConfig

_VOCAB_SIZE, _SEQ_LENGTH, _GLOBAL_BATCH_SIZE = 256, 16, 8


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A parallel layout; data parallelism is what is left of the world. `dispatcher` makes it a mixture of experts."""

    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    sp: bool = False
    dispatcher: str | None = None
    recompute: bool = False


@dataclass(frozen=True)
class Trained:
    """Per step, the loss per token (empty on ranks that do not see it) and the gradient norm."""

    losses: list[float]
    grad_norms: list[float]


def train(*, layout: Layout, checkpoint: Path, save: bool = False) -> Trained:
    """Make the model, save its random weights or load them, and take two optimizer steps."""
    model, optimizer = _build(layout)
    if save:
        _save(checkpoint, model=model)
    else:
        _load(checkpoint, model=model)
    optimizer.reload_model_params()
    return _trained(model, optimizer=optimizer, num_steps=2)


def train_and_resume(*, layout: Layout, folder: Path) -> tuple[Trained, Trained]:
    """Two steps, a checkpoint with the optimizer, two more; then those two again from the checkpoint, freshly built."""
    model, optimizer = _build(layout)
    _trained(model, optimizer=optimizer, num_steps=2)
    _save(folder, model=model, optimizer=optimizer)
    straight = _trained(model, optimizer=optimizer, num_steps=2)
    parallel_state.destroy_model_parallel()
    model, optimizer = _build(layout)
    _load(folder, model=model, optimizer=optimizer)
    return straight, _trained(model, optimizer=optimizer, num_steps=2)


def _build(layout: Layout) -> tuple[DistributedDataParallel, MegatronOptimizer]:
    config = _config(layout)
    parallel_state.initialize_model_parallel(
        layout.tp,
        layout.pp,
        context_parallel_size=layout.cp,
        expert_model_parallel_size=layout.ep,
        expert_tensor_parallel_size=config.expert_tensor_parallel_size,
    )
    tensor_parallel.model_parallel_cuda_manual_seed(1, force_reset_rng=True)
    ddp_config = DistributedDataParallelConfig(use_distributed_optimizer=True, overlap_grad_reduce=False)
    model = DistributedDataParallel(config, ddp_config, _model(config))
    adam = OptimizerConfig(optimizer="adam", lr=1e-2, use_distributed_optimizer=True, clip_grad=1.0)
    optimizer = get_megatron_optimizer(adam, [model])
    config.finalize_model_grads_func = finalize_model_grads
    config.grad_scale_func = optimizer.scale_loss
    return model, optimizer


def _trained(model: DistributedDataParallel, *, optimizer: MegatronOptimizer, num_steps: int) -> Trained:
    steps = [_step(model, optimizer=optimizer) for _ in range(num_steps)]
    return Trained([loss for loss, _ in steps if loss is not None], [norm for _, norm in steps])


def _config(layout: Layout) -> TransformerConfig:
    experts: dict[str, Any] = {}
    if layout.dispatcher:
        experts = {
            "num_moe_experts": 4,
            "moe_router_topk": 2,
            "moe_ffn_hidden_size": 64,
            "moe_router_dtype": "fp32",
            "moe_router_load_balancing_type": "none",
            "moe_token_dispatcher_type": layout.dispatcher,
            "moe_grouped_gemm": True,
        }
    recompute = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    return TransformerConfig(
        num_layers=4,
        hidden_size=64,
        num_attention_heads=4,
        num_query_groups=2,
        ffn_hidden_size=128,
        normalization="RMSNorm",
        qk_layernorm=True,
        add_bias_linear=False,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        calculate_per_token_loss=True,
        pipeline_dtype=torch.float32,
        tensor_model_parallel_size=layout.tp,
        pipeline_model_parallel_size=layout.pp,
        context_parallel_size=layout.cp,
        expert_model_parallel_size=layout.ep,
        expert_tensor_parallel_size=1 if layout.ep > 1 else layout.tp,
        sequence_parallel=layout.sp,
        **experts,
        **(recompute if layout.recompute else {}),
    )


def _model(config: TransformerConfig) -> GPTModel:
    return GPTModel(
        config,
        get_gpt_decoder_block_spec(config, use_transformer_engine=True),
        vocab_size=_VOCAB_SIZE,
        max_sequence_length=128,
        position_embedding_type="rope",
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=False,
    )


def _save(folder: Path, *, model: DistributedDataParallel, optimizer: MegatronOptimizer | None = None) -> None:
    if dist.get_rank() == 0:
        folder.mkdir()
    dist.barrier()
    dist_checkpointing.save(_state(model, optimizer=optimizer, is_loading=False), str(folder))


def _load(folder: Path, *, model: DistributedDataParallel, optimizer: MegatronOptimizer | None = None) -> None:
    state = dist_checkpointing.load(_state(model, optimizer=optimizer, is_loading=True), str(folder))
    model.module.load_state_dict(state["model"])
    if optimizer is not None:
        optimizer.load_state_dict(state["optimizer"])


def _state(model: DistributedDataParallel, *, optimizer: MegatronOptimizer | None, is_loading: bool) -> dict[str, Any]:
    metadata = {
        "dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True),
        "distrib_optim_sharding_type": "fully_reshardable",
    }
    state: dict[str, Any] = {"model": model.module.sharded_state_dict(metadata=metadata)}
    if optimizer is not None:
        state["optimizer"] = optimizer.sharded_state_dict(state["model"], is_loading=is_loading, metadata=metadata)
    return state


def _step(model: DistributedDataParallel, *, optimizer: MegatronOptimizer) -> tuple[float | None, float]:
    """One optimizer step on the fixed batch: the loss per token, None where this rank does not see it, and the norm."""
    model.train()
    model.zero_grad_buffer()
    optimizer.zero_grad()
    batches = _batches()
    outputs = get_forward_backward_func()(
        forward_step_func=_forward_step,
        data_iterator=iter(batches),
        model=model,
        num_microbatches=len(batches),
        seq_length=_SEQ_LENGTH,
        micro_batch_size=1,
        forward_only=False,
    )
    loss = None
    if outputs:
        total = torch.stack([output["loss"] for output in outputs]).sum(0)
        dist.all_reduce(total, group=parallel_state.get_data_parallel_group(with_context_parallel=True))
        loss = (total[0] / total[1]).item()
    _, grad_norm, _ = optimizer.step()
    return loss, float(grad_norm)


def _batches() -> list[torch.Tensor]:
    """This data-parallel rank's sequences, [1, seq_length + 1] each, of a batch that is the same in every layout."""
    generator = torch.Generator().manual_seed(0)
    everything = torch.randint(0, _VOCAB_SIZE, (_GLOBAL_BATCH_SIZE, _SEQ_LENGTH + 1), generator=generator)
    mine = everything[parallel_state.get_data_parallel_rank() :: parallel_state.get_data_parallel_world_size()]
    return list(mine.split(1))


def _forward_step(batches: Iterator[torch.Tensor], model: DistributedDataParallel) -> tuple[torch.Tensor, Any]:
    sequence = next(batches)
    positions = _positions()
    tokens, labels = sequence[:, positions], sequence[:, positions + 1]
    losses = model(tokens, positions[None], None, labels=labels)
    return losses, _sum_loss


def _positions() -> torch.Tensor:
    """The positions that this rank computes: all, or context parallelism's two of 2 · cp chunks."""
    size, rank = parallel_state.get_context_parallel_world_size(), parallel_state.get_context_parallel_rank()
    chunks = torch.arange(_SEQ_LENGTH).chunk(2 * size)
    return torch.cat([chunks[rank], chunks[2 * size - 1 - rank]])


def _sum_loss(losses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    total, num_tokens = losses.sum(), torch.tensor(losses.numel(), dtype=torch.int)
    return total, num_tokens, {"loss": torch.stack([total.detach(), num_tokens.float()])}

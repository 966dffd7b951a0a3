"""A tiny policy on this process's ranks, built with hooks between its weights and its wrap; training steps on it.

Runs in forked worlds: imported by the functions that run there, or by tests for what needs no Megatron.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from megatron.bridge.training.checkpointing import _load_model_weights_from_checkpoint as load_weights
from megatron.bridge.training.model_load_save import load_model_config
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallelConfig, finalize_model_grads
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.transformer.module import MegatronModule
from megatron.core.utils import unwrap_model

from launcher.compose import compose
from launcher.schema import RunConfig
from megatron_setup import tables
from megatron_setup.convert import convert_with_bridge
from megatron_setup.draft_model import draft_hook, draft_loss
from megatron_setup.lora import lora_hook
from megatron_setup.optimizer import ddp_fields, optimizer_fields
from megatron_setup.provider import finalize, set_fields, upstream_value
from megatron_setup.random_model import make_random_hf_model

LENGTH, ROWS = 16, 4


def convert(words: Sequence[str], *, folder: Path) -> None:
    """The tiny model of the words, as a Hugging Face folder and as a Megatron checkpoint; leaves no groups behind."""
    config = compose(words).config
    make_random_hf_model(
        folder / "hf", hf_config=config.model.hf_config, dtype=config.precision.dtype.value, seed=config.model.init_seed
    )
    convert_with_bridge(config, source=folder / "hf", target=folder / "megatron")
    parallel_state.destroy_model_parallel()


def iteration_of(folder: Path) -> str:
    """What `convert` wrote."""
    return str(folder / "megatron" / "iter_0000000")


@dataclass(frozen=True, kw_only=True)
class Policy:
    """A wrapped model, and its optimizer when first asked for."""

    config: RunConfig
    folder: Path

    @cached_property
    def model(self) -> list[MegatronModule]:
        """One chunk a rank. Weights, then the draft, then LoRA, then the wrap."""
        provider: Any = load_model_config(iteration_of(self.folder))[0]
        fields = tables.provider_fields(self.config, has_experts=bool(provider.num_moe_experts))
        set_fields(provider, fields=fields)
        finalize(provider, fields=fields)
        if not parallel_state.model_parallel_is_initialized():  # by another policy of this world
            provider.initialize_model_parallel(seed=1)
        hooks: list[Any] = [self._load]
        if self.config.model.draft.enabled:
            hooks.append(draft_hook(self.config, provider=provider))
        if self.config.model.peft.enabled:
            hooks.append(lora_hook(self.config))
        ddp = DistributedDataParallelConfig(**_upstream(ddp_fields(self.config)))
        return provider.provide_distributed_model(ddp_config=ddp, pre_wrap_hook=hooks)

    def _load(self, model: list[MegatronModule]) -> list[MegatronModule]:
        load_weights(iteration_of(self.folder), model)
        return model

    @cached_property
    def optimizer(self) -> Any:
        """Megatron's, over the model."""
        return get_megatron_optimizer(OptimizerConfig(**_upstream(optimizer_fields(self.config))), self.model)

    @property
    def chunk(self) -> Any:
        """The model inside of its wrappers."""
        return unwrap_model(self.model)[0]


def _upstream(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: upstream_value(value) for name, value in fields.items()}


def policy_of(words: Sequence[str], *, folder: Path) -> Policy:
    """A policy of the words, with the weights of `folder`; its model is built."""
    policy = Policy(config=compose(["model.seq_length=64", *words]).config, folder=folder)
    assert policy.model
    return policy


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Random tokens of this data-parallel rank, [ROWS, LENGTH] each; the prompt is a quarter."""

    tokens: torch.Tensor
    targets: torch.Tensor
    positions: torch.Tensor
    mask: torch.Tensor


def batch() -> Batch:
    """The same each time it is asked for."""
    generator = torch.Generator().manual_seed(parallel_state.get_data_parallel_rank())
    tokens = torch.randint(0, 500, (ROWS, LENGTH + 1), generator=generator)
    mask = torch.ones(ROWS, LENGTH)
    mask[:, : LENGTH // 4] = 0.0
    return Batch(
        tokens=tokens[:, :-1].contiguous(),
        targets=tokens[:, 1:].contiguous(),
        positions=torch.arange(LENGTH).expand(ROWS, -1).contiguous(),
        mask=mask,
    )


def logits_of(policy: Policy) -> torch.Tensor:
    """[ROWS, LENGTH, vocabulary / TP] of the batch, in training mode."""
    policy.model[0].train()
    return policy.model[0](batch().tokens, batch().positions, None)


def train(policy: Policy, *, num_steps: int) -> list[float]:
    """Optimizer steps on the same batch, the draft's loss among the policy's; the draft's losses, one a step."""
    chunk: Any = policy.model[0]
    optimizer, data, losses = policy.optimizer, batch(), []
    for _ in range(num_steps):
        chunk.zero_grad_buffer()
        optimizer.zero_grad()
        logits = logits_of(policy)
        loss = torch.log_softmax(logits.float(), dim=-1)[..., 0].mean()
        if policy.config.model.draft.enabled:
            draft = draft_loss(chunk, logits=logits, targets=data.targets, positions=data.positions, mask=data.mask)
            losses.append(draft.item())
            loss = loss + draft / data.mask.sum()
        loss.backward()
        finalize_model_grads([chunk], None)
        optimizer.step()
    return losses


def tensor_bits(tensor: torch.Tensor) -> str:
    """A hash of the bytes: a tensor would be sent as shared memory that dies with its rank."""
    return hashlib.sha256(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def bits(module: Any) -> dict[str, str]:
    """A hash of every parameter."""
    return {name: tensor_bits(param) for name, param in module.named_parameters()}

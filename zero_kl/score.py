"""The training forward: log-probabilities of given sequences, and a policy-gradient step on them.

Both run the same forward through Megatron's own schedule (pipelined where PP > 1), in training mode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.optimizer import MegatronOptimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.module import MegatronModule

from zero_kl.batches import MicroBatch, micro_batches, padded_length
from zero_kl.logprob import token_logprobs

LossFunction = Callable[..., Any]


def score(
    model: list[MegatronModule],
    *,
    sequences: Sequence[Sequence[int]],
    micro_batch_size: int,
    row_multiple: int,
    on_batch: Callable[[int, int], None],
) -> list[torch.Tensor]:
    """fp32 CPU log-probabilities of tokens 1.. of each sequence, shape [len - 1]; empty list off the last stage.

    `on_batch(done, total)` is called per micro-batch on the stage that has them.
    """
    length = padded_length(sequences, multiple=row_multiple)
    batches = micro_batches(sequences, micro_batch_size=micro_batch_size, length=length, device=this_device())
    done: list[torch.Tensor] = []

    def collect(logits: torch.Tensor, *, batch: MicroBatch, non_loss_data: bool) -> None:
        del non_loss_data  # the schedule passes it; this function is only used to collect
        rows = token_logprobs(logits, targets=batch.targets).cpu()
        done.extend(row[:n].clone() for row, n in zip(rows, batch.lengths, strict=True) if n)
        on_batch(len(done), len(sequences))

    with torch.no_grad():
        run_schedule(model, batches=batches, loss=collect, forward_only=True)
    return done


def policy_gradient_step(
    model: list[MegatronModule],
    *,
    optimizer: MegatronOptimizer,
    sequences: Sequence[Sequence[int]],
    prompt_lengths: Sequence[int],
    advantages: Sequence[float],
    micro_batch_size: int,
    row_multiple: int,
) -> None:
    """One optimizer step of -advantage x log-probability over the response tokens.

    Averaged per token over all ranks (`calculate_per_token_loss`).
    """
    length = padded_length(sequences, multiple=row_multiple)
    batches = micro_batches(sequences, micro_batch_size=micro_batch_size, length=length, device=this_device())
    weights = iter(_weights(prompt_lengths, advantages=advantages, batches=batches))

    def loss(logits: torch.Tensor, *, batch: MicroBatch) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
        weight, mask = next(weights)
        total = -(token_logprobs(logits, targets=batch.targets) * weight * mask).sum()
        return total, mask.sum().int(), {}

    for chunk in model:
        chunk.zero_grad_buffer()  # pyright: ignore[reportCallIssue]  of the DDP wrapper
    optimizer.zero_grad()
    run_schedule(model, batches=batches, loss=loss, forward_only=False)
    optimizer.step()


def _weights(
    prompt_lengths: Sequence[int], *, advantages: Sequence[float], batches: Sequence[MicroBatch]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Per micro-batch: the advantage of each row [rows, 1] and the mask of its response [rows, length]."""
    row = 0
    for batch in batches:
        mask = torch.zeros(batch.tokens.shape)
        weight = torch.zeros(len(batch.lengths), 1)
        for i, n in enumerate(batch.lengths):
            if n:
                mask[i, prompt_lengths[row] - 1 : n] = 1.0
                weight[i] = advantages[row]
                row += 1
        yield weight.to(batch.tokens.device), mask.to(batch.tokens.device)


def run_schedule(
    model: list[MegatronModule], *, batches: Sequence[MicroBatch], loss: LossFunction, forward_only: bool
) -> list[Any]:
    """One forward (and backward) over all micro-batches by Megatron's schedule, in training mode.

    `loss(logits, batch=...)` is called on the last stage; returned is what it reported per micro-batch, there alone.
    """
    for chunk in model:
        chunk.train()

    def forward_step(batches: Iterator[MicroBatch], chunk: MegatronModule) -> tuple[torch.Tensor, LossFunction]:
        batch = next(batches)
        # No mask: causal attention is the model's own, and padding sits behind every row's last token.
        logits = chunk(batch.tokens, batch.positions, None)
        return logits, lambda output, **extra: loss(output, batch=batch, **extra)

    size, length = batches[0].tokens.shape
    schedule: Any = get_forward_backward_func()
    return schedule(
        forward_step_func=forward_step,
        data_iterator=[iter(batches) for _ in model] if len(model) > 1 else iter(batches),
        model=model if len(model) > 1 else model[0],
        num_microbatches=len(batches),
        seq_length=length,
        micro_batch_size=size,
        decoder_seq_length=length,
        forward_only=forward_only,
        collect_non_loss_data=forward_only,
    )


def is_scoring_rank() -> bool:
    """True on the ranks that get log-probabilities from `score`: the last pipeline stage."""
    return parallel_state.is_pipeline_last_stage(ignore_virtual=True)


def is_first_of_its_replica() -> bool:
    """True on one rank of those that hold the same sequences' log-probabilities: the first over TP and CP."""
    return parallel_state.get_tensor_model_parallel_rank() == 0 and parallel_state.get_context_parallel_rank() == 0


def this_device() -> torch.device:
    """This rank's GPU, or the CPU where there is none."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")

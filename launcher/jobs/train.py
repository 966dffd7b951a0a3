"""The job `train`: supervised optimizer steps on texts or random sequences, saved, and resumed bit for bit.

Owns the data of a step, which depends on the seed and the step alone, and the loss. A resumed run needs nothing else.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core import parallel_state

from launcher.errors import Interrupted
from launcher.interruption import Request, requests_noted
from launcher.jobs.sampling import read_texts
from launcher.paths import AttemptPaths
from launcher.schema import RunConfig
from launcher.steps import StepRecord, append_step
from megatron_setup.apply import Setup, end_early, finish_step
from megatron_setup.draft_model import draft_loss
from megatron_setup.optimizer import batch_size
from zero_kl.batches import MicroBatch, micro_batches, padded_length, row_multiple
from zero_kl.logprob import token_logprobs
from zero_kl.prompts import random_prompts
from zero_kl.score import LossFunction, is_first_of_its_replica, is_scoring_rank, run_schedule, this_device

_SHORTEST = 2
"""Tokens of a sequence that predicts something."""

Terms = dict[str, torch.Tensor]
"""Sums over the tokens of a micro-batch, by the name of the term, and their number under `tokens`."""


def train(setup: Setup, *, paths: AttemptPaths) -> None:
    """Take the steps that are left of `job.num_steps`; rank 0 writes each down.

    Raises Interrupted on all ranks after the same step, and after its save, where a signal asked one of them to end.
    """
    texts = read_texts(setup, max_new_tokens=0)
    total = setup.config.job.num_steps
    setup.progress("train", done=setup.saves.step, total=total, unit="steps")
    with requests_noted() as request:
        for step in range(setup.saves.step, total):
            sequences = _of_step(texts, step=step, setup=setup, vocab_size=len(setup.finished.tokenizer))
            record = _step(setup, sequences=sequences)
            if setup.rank == 0:
                append_step(paths.steps, record=record)
            finish_step(setup)
            setup.progress("train", done=step + 1, total=total, unit="steps")
            if step + 1 < total:
                _end_where_asked(setup, request=request)


def _end_where_asked(setup: Setup, *, request: Request) -> None:
    """Signals reach the ranks at different moments, so they agree: the largest number on any rank is everybody's."""
    number = torch.tensor([request.number], device=this_device())
    torch.distributed.all_reduce(number, op=torch.distributed.ReduceOp.MAX)
    if not number.item():
        return
    end_early(setup)
    text = f"interrupted by {signal.Signals(int(number.item())).name} after step {setup.saves.step}, "
    saves = setup.config.checkpoint.save
    raise Interrupted(text + ("saved\nhint: the same command goes on there" if saves else "checkpoint.save is false"))


def _of_step(texts: list[list[int]], *, step: int, setup: Setup, vocab_size: int) -> list[list[int]]:
    """The step's sequences, of all replicas: the next ones of the file, from its start again, or random ones."""
    job, size = setup.config.job, batch_size(setup.config)
    if texts:
        return [texts[(step * size + i) % len(texts)] for i in range(size)]
    return random_prompts(
        size,
        min_tokens=max(job.min_prompt_tokens, _SHORTEST),
        max_tokens=max(job.max_prompt_tokens, _SHORTEST),
        vocab_size=vocab_size,
        seed=job.seed + step,
    )


@dataclass(frozen=True, kw_only=True)
class _Batch:
    """A step's sequences on this replica. `reference` is the reference policy's log-probabilities of each micro-batch,
    [micro_batch_size, length] on the last stage; empty where it has no part in the loss."""

    micro_batches: list[MicroBatch]
    reference: list[torch.Tensor]


def _step(setup: Setup, *, sequences: Sequence[Sequence[int]]) -> StepRecord:
    started = time.perf_counter()
    batch = _batch(setup, sequences=sequences)
    for chunk in setup.model:
        chunk.zero_grad_buffer()  # pyright: ignore[reportCallIssue]  of the DDP wrapper
    setup.optimizer.zero_grad()
    reported: list[Terms] = run_schedule(
        setup.model, batches=batch.micro_batches, loss=_loss_of(setup, batch=batch), forward_only=False
    )
    lr = float(setup.optimizer.param_groups[0]["lr"])
    stepped: Any = setup.optimizer.step()  # upstream's annotation forgets what it returns
    _, grad_norm, _ = stepped
    terms, num_tokens = _means(reported)
    return StepRecord(
        step=setup.saves.step + 1,
        loss=sum(_weight(setup.config, term=name) * value for name, value in terms.items()),
        terms=terms,
        value_loss=None if setup.value is None else _value_step(setup.value, sequences=sequences, policy=setup),
        grad_norm=float(grad_norm),
        lr=lr,
        num_tokens=num_tokens,
        seconds=time.perf_counter() - started,
    )


def _weight(config: RunConfig, *, term: str) -> float:
    """The loss is the sum of its terms, times these."""
    return {"nll": 1.0, "kl": config.job.reference_kl_weight, "draft": config.model.draft.loss_weight}[term]


def _batch(setup: Setup, *, sequences: Sequence[Sequence[int]]) -> _Batch:
    replicas, replica = parallel_state.get_data_parallel_world_size(), parallel_state.get_data_parallel_rank()
    batches = micro_batches(
        sequences[replica::replicas],
        micro_batch_size=setup.config.performance.micro_batch_size,
        length=padded_length(sequences, multiple=row_multiple(setup.config)),  # the same on all replicas
        device=this_device(),
    )
    if setup.reference is None or not setup.config.job.reference_kl_weight:
        return _Batch(micro_batches=batches, reference=[])
    with setup.reference.in_force(setup.model), torch.no_grad():
        reference: list[torch.Tensor] = run_schedule(setup.model, batches=batches, loss=_logprobs, forward_only=True)
    return _Batch(micro_batches=batches, reference=reference)


def _logprobs(logits: torch.Tensor, *, batch: MicroBatch, non_loss_data: bool) -> torch.Tensor:
    del non_loss_data  # the schedule says that this is no loss
    return token_logprobs(logits, targets=batch.targets)


def _loss_of(setup: Setup, *, batch: _Batch) -> LossFunction:
    """The loss of a micro-batch: a sum over its tokens, their number, and the terms for the record.

    The schedule calls it once per micro-batch, in their order.
    """
    config, reference = setup.config, iter(batch.reference)

    def loss(logits: torch.Tensor, *, batch: MicroBatch) -> tuple[torch.Tensor, torch.Tensor, Terms]:
        mask = _mask(batch)
        logprobs = token_logprobs(logits, targets=batch.targets)
        terms = {"nll": -(logprobs * mask).sum()}
        if setup.reference is not None and config.job.reference_kl_weight:
            terms["kl"] = (_k3(logprobs, reference=next(reference)) * mask).sum()
        if config.model.draft.enabled:
            terms["draft"] = draft_loss(
                setup.model[0], logits=logits, targets=batch.targets, positions=batch.positions, mask=mask
            )
        total = torch.stack([_weight(config, term=name) * value for name, value in terms.items()]).sum()
        reported = {name: value.detach() for name, value in terms.items()}
        return total, mask.sum().int(), {**reported, "tokens": mask.sum()}

    return loss


def _k3(logprobs: torch.Tensor, *, reference: torch.Tensor) -> torch.Tensor:
    """Per token, never negative; its mean over the policy's samples is KL(policy || reference), in nats."""
    log_r = reference - logprobs
    return torch.expm1(log_r) - log_r


def _value_step(value: Setup, *, sequences: Sequence[Sequence[int]], policy: Setup) -> float:
    """One step of the value model towards the return of each sequence; its mean squared error before the step.

    Returns are drawn: no reward is needed to move weights, and a resumed run draws the same.
    """
    batches = _batch(value, sequences=sequences).micro_batches
    generator = random.Random(policy.config.job.seed + policy.saves.step)
    returns = [generator.gauss(0.0, 1.0) for _ in sequences]
    mine = iter(returns[parallel_state.get_data_parallel_rank() :: parallel_state.get_data_parallel_world_size()])

    def loss(values: torch.Tensor, *, batch: MicroBatch) -> tuple[torch.Tensor, torch.Tensor, Terms]:
        mask = _mask(batch)
        wanted = torch.tensor([next(mine) if n else 0.0 for n in batch.lengths], device=values.device)
        error = ((values - wanted[:, None]).square() * mask).sum()
        return error, mask.sum().int(), {"value": error.detach(), "tokens": mask.sum()}

    for chunk in value.model:
        chunk.zero_grad_buffer()  # pyright: ignore[reportCallIssue]  of the DDP wrapper
    value.optimizer.zero_grad()
    reported: list[Terms] = run_schedule(value.model, batches=batches, loss=loss, forward_only=False)
    value.optimizer.step()
    return _means(reported)[0]["value"]


def _mask(batch: MicroBatch) -> torch.Tensor:
    """1 for each predicted token, [rows, length]."""
    lengths = torch.tensor(batch.lengths, device=batch.positions.device)
    return (batch.positions < lengths[:, None]).float()


def _means(reported: list[Terms]) -> tuple[dict[str, float], int]:
    """Each term per token, and the tokens of all ranks."""
    sums = _over_all_ranks(reported)
    num_tokens = int(sums.pop("tokens"))
    return {name: value / num_tokens for name, value in sums.items()}, num_tokens


def _over_all_ranks(reported: list[Terms]) -> dict[str, float]:
    """The terms summed over micro-batches and replicas, in float64 and in one order, the same on every rank."""
    mine: dict[str, float] = {}
    if is_scoring_rank() and is_first_of_its_replica():
        for terms in reported:
            for name, value in terms.items():
                mine[name] = mine.get(name, 0.0) + float(value)
    shares: list[dict[str, float]] = [{}] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(shares, mine)
    with_terms = [share for share in shares if share]
    return {name: sum(share[name] for share in with_terms) for name in with_terms[0]}

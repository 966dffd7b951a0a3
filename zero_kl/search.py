"""From a verdict that is not zero to something a person can act on: the smallest failing case, and its first module.

Smaller means fewer requests together, then a shorter sequence. Every rank runs the same cases, in step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.transformer.module import MegatronModule
from megatron.core.utils import unwrap_model

from launcher.schema import Backend, PlatformKind, RunConfig
from launcher.schema.generation import InferenceCudaGraphScope
from launcher.schema.performance import CudaGraphImpl
from zero_kl.batches import row_multiple
from zero_kl.evidence import Difference, Search
from zero_kl.generate import generate
from zero_kl.score import score
from zero_kl.selftest.rows import differing_rows
from zero_kl.trace import Trace, in_engine, in_training, recording

LOG_SOFTMAX = "log_softmax"
"""The point behind the last module: the log-probabilities themselves."""

NAMED_ROWS = 8
"""So many differing positions are named."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """Requests that run together, the failing one first. `new_tokens` is 0 where nothing is sampled."""

    prompts: tuple[tuple[int, ...], ...]
    new_tokens: int

    def together(self, count: int) -> Case:
        """The first `count` requests."""
        return dataclasses.replace(self, prompts=self.prompts[:count])

    def up_to(self, position: int) -> Case:
        """The shortest case of these requests in which this position of the first one is computed."""
        first = len(self.prompts[0])
        if self.new_tokens == 0:  # the last token is a target only
            return dataclasses.replace(self, prompts=tuple(p[: position + 2] for p in self.prompts))
        if position >= first:
            return dataclasses.replace(self, new_tokens=position - first + 2)
        return Case(prompts=tuple(p[: position + 1] for p in self.prompts), new_tokens=1)


@dataclass(frozen=True, kw_only=True)
class First:
    """The first point of two traces that differs; `order` counts points in the order of computation."""

    order: int
    point: str
    positions: tuple[int, ...]
    num_compared: int
    max_abs_diff: float


@dataclass(frozen=True, kw_only=True)
class Runs:
    """The two ways to compute a case, on one model."""

    model: list[MegatronModule]
    config: RunConfig
    tokenizer: Any

    def between_batches(self, case: Case) -> tuple[Trace, Trace]:
        """The training forward of the first sequence alone, and among the others."""
        return self._train(case.prompts[:1]), self._train(case.prompts)

    def against_generation(self, case: Case) -> tuple[Trace, Trace]:
        """The training forward of what the engine samples for the first prompt among the others, and the engine's."""
        recorder = in_engine(request=0)
        unwrapped: Any = unwrap_model(self.model)[0]
        with recording(unwrapped, recorder=recorder):
            sampled = generate(
                unwrapped,
                prompts=case.prompts,
                tokenizer=self.tokenizer,
                config=_eager(self.config, new_tokens=case.new_tokens),
                on_finished=_silent,
            )
        first = len(case.prompts[0]) - 1
        recorder.trace[LOG_SOFTMAX] = {first + i: value for i, value in enumerate(sampled[0].logprobs)}
        sequences = [(*p, *s.tokens) for p, s in zip(case.prompts, sampled, strict=True)]
        return self._train(sequences), recorder.trace

    def _train(self, sequences: Sequence[Sequence[int]]) -> Trace:
        size = self.config.performance.micro_batch_size
        recorder = in_training(sequence=0, length=len(sequences[0]) - 1, micro_batch_size=size)
        unwrapped: Any = unwrap_model(self.model)[0]
        with recording(unwrapped, recorder=recorder):
            rows = score(
                self.model,
                sequences=sequences,
                micro_batch_size=size,
                row_multiple=row_multiple(self.config),
                on_batch=_silent,
            )
        recorder.trace[LOG_SOFTMAX] = dict(enumerate(rows[0]))
        return recorder.trace


def search(runs: Runs, *, prompts: Sequence[Sequence[int]], sequences: Sequence[Sequence[int]], failing: int) -> Search:
    """The smallest failing case. Every rank calls it with the same requests; `failing` is the index of one of them."""
    reason = _reason_not_to(runs.config)
    if reason is not None:
        return Search(says=reason)
    for against, traces, case in (
        ("itself in another batch", runs.between_batches, Case(prompts=_first(sequences, failing), new_tokens=0)),
        (
            "generation",
            runs.against_generation,
            Case(prompts=_first(prompts, failing), new_tokens=runs.config.generation.max_new_tokens),
        ),
    ):
        found = _smallest(case, traces=traces)
        if found is not None:
            return Search(found=_difference(*found, against=against, request=failing))
    return Search(says="nothing differed when it was run again without CUDA graphs")


def first_difference(left: Trace, *, right: Trace) -> First | None:
    """The first point, in `left`'s order, with other bits at a position that both have.

    Points of other widths are passed over: under tensor parallelism generation gathers the output layer's columns and
    training does not, before the log-softmax that is a point of its own.
    """
    for order, (point, rows) in enumerate(left.items()):
        common = [p for p in rows if point in right and p in right[point]]
        if not common:
            continue
        ours, theirs = (torch.stack([t[point][p] for p in common]).reshape(len(common), -1) for t in (left, right))
        if ours.shape != theirs.shape:
            continue
        differing = [common[i] for i in differing_rows(ours, right=theirs)]
        if differing:
            return First(
                order=order,
                point=point,
                positions=tuple(differing),
                num_compared=len(common),
                max_abs_diff=float((ours.double() - theirs.double()).abs().max()),
            )
    return None


def _smallest(case: Case, *, traces: Callable[[Case], tuple[Trace, Trace]]) -> tuple[Case, First] | None:
    """Fewest requests that fail (1, 2, 4, ... of them), then the shortest of these up to the first difference."""

    def differs(case: Case) -> First | None:
        ours, theirs = traces(case)
        return _over_ranks(first_difference(ours, right=theirs))

    for count in _counts(len(case.prompts)):
        small = case.together(count)
        found = differs(small)
        if found is not None:
            shorter = small.up_to(found.positions[0])
            again = differs(shorter)
            return (small, found) if again is None else (shorter, again)
    return None


def _over_ranks(mine: First | None) -> First | None:
    """The earliest of all ranks' differences: each sees its share of a module's columns."""
    everyone: list[First | None] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(everyone, mine)
    return min((first for first in everyone if first is not None), key=lambda first: first.order, default=None)


def _reason_not_to(config: RunConfig) -> str | None:
    if config.parallelism.pipeline_model_parallel_size > 1:
        return "not searched: the layers are spread over pipeline stages"
    if config.parallelism.sequence_parallel:
        return "not searched: sequence parallelism splits the rows"
    if config.zero_kl.backend is Backend.none and config.platform.kind is not PlatformKind.cpu:
        # A long request alone makes FlashAttention-4 ask for split keys, which fails on sm_90.
        return "not searched: ordinary kernels were asked for, and none of them is held to be exact"
    return None


def _first(requests: Sequence[Sequence[int]], failing: int) -> tuple[tuple[int, ...], ...]:
    others = [tuple(r) for i, r in enumerate(requests) if i != failing]
    return (tuple(requests[failing]), *others)


def _counts(most: int) -> list[int]:
    """1, 2, 4, ... and all."""
    return [*(2**i for i in range(most.bit_length()) if 2**i < most), most]


def _eager(config: RunConfig, *, new_tokens: int) -> RunConfig:
    """Without CUDA graphs, whose replay runs no hook."""
    generation = dataclasses.replace(
        config.generation,
        max_new_tokens=new_tokens,
        cuda_graph_impl=CudaGraphImpl.none,
        inference_cuda_graph_scope=InferenceCudaGraphScope.none,
        num_cuda_graphs=0,
    )
    return dataclasses.replace(config, generation=generation)


def _difference(case: Case, first: First, *, against: str, request: int) -> Difference:
    return Difference(
        point=first.point,
        positions=first.positions[:NAMED_ROWS],
        num_differing=len(first.positions),
        num_compared=first.num_compared,
        max_abs_diff=first.max_abs_diff,
        against=against,
        request=request,
        num_requests=len(case.prompts),
        prompt_tokens=len(case.prompts[0]),
        new_tokens=case.new_tokens,
    )


def _silent(done: int, total: int) -> None:
    del done, total

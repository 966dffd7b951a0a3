"""The equalities that join training and generation, each swept over batch size, order and padding, bit by bit.

score(batch a) == score(batch b); engine prefill == score; engine decode == score. With them, what was measured in one
batch holds in another. The negative control is the same with `zero_kl.backend=none`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.transformer.module import MegatronModule
from megatron.core.utils import unwrap_model
from torch import Tensor

from launcher.schema import RunConfig
from zero_kl.batches import padded_length, row_multiple
from zero_kl.evidence import Claim
from zero_kl.generate import generate
from zero_kl.prefill import prefill
from zero_kl.score import is_first_of_its_replica, is_scoring_rank, score
from zero_kl.selftest.rows import rows_that_differ

SCORE, PREFILL, DECODE = "score == score", "engine prefill == score", "engine decode == score"

NUM_ALONE = 4
"""So many requests run one at a time: each takes as many steps as all together."""

type Pairs = list[tuple[Tensor, Tensor]]
"""Log-probabilities of one sequence, computed in two ways; empty off the last pipeline stage."""


@dataclass(frozen=True, kw_only=True)
class Subjects:
    """This rank's model and requests. `sequences` are prompts and responses as they were measured."""

    model: list[MegatronModule]
    config: RunConfig
    tokenizer: Any
    prompts: Sequence[Sequence[int]]
    sequences: Sequence[Sequence[int]]

    def score(self, sequences: Sequence[Sequence[int]], *, batch: int | None = None, padding: int = 0) -> list[Tensor]:
        """The training forward with other micro-batches, or with so much more padding behind the longest sequence."""
        multiple = row_multiple(self.config)
        if padding:
            multiple *= padded_length(sequences, multiple=multiple) // multiple + padding
        return score(
            self.model,
            sequences=sequences,
            micro_batch_size=self.config.performance.micro_batch_size if batch is None else batch,
            row_multiple=multiple,
            on_batch=_silent,
        )

    def prefill(self, sequences: Sequence[Sequence[int]]) -> list[Tensor]:
        """The engine's log-probabilities of given sequences."""
        model: Any = unwrap_model(self.model)[0]
        return prefill(model, sequences=sequences, tokenizer=self.tokenizer, config=self.config)

    def decode(self, prompts: Sequence[Sequence[int]], *, together: int | None = None, padding: int = 0) -> Pairs:
        """Responses sampled `together` at a time (None: all), and the training forward of all of them."""
        sampled = [s for part in _parts(prompts, size=together) for s in self._generate(part)]
        sequences = [(*p, *s.tokens) for p, s in zip(prompts, sampled, strict=True)]
        scored = self.score(sequences, padding=padding)
        return [(s.logprobs, row[len(p) - 1 :]) for p, s, row in zip(prompts, sampled, scored, strict=False)]

    def _generate(self, prompts: Sequence[Sequence[int]]) -> list[Any]:
        model: Any = unwrap_model(self.model)[0]
        return generate(model, prompts=prompts, tokenizer=self.tokenizer, config=self.config, on_finished=_silent)


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """One way to vary one claim; `pairs` gets the subjects and their scores as measured."""

    claim: str
    name: str
    pairs: Callable[[Subjects, list[Tensor]], Pairs]


def _scored(**changed: int) -> Callable[[Subjects, list[Tensor]], Pairs]:
    return lambda s, reference: _zip(s.score(s.sequences, **changed), reference)


def _prefilled(sequences: Sequence[Sequence[int]], *, s: Subjects, reference: list[Tensor]) -> Pairs:
    return [(row, whole[:-1]) for row, whole in _zip(s.prefill(sequences), reference)]


def _zip(one: list[Tensor], other: list[Tensor]) -> Pairs:
    """Both empty, or one of them, off the stage that has log-probabilities."""
    return list(zip(one, other, strict=False))


SWEEPS: tuple[Sweep, ...] = (
    Sweep(
        claim=SCORE,
        name="one at a time",
        pairs=lambda s, reference: _zip([row for each in s.sequences for row in s.score([each], batch=1)], reference),
    ),
    Sweep(claim=SCORE, name="three at a time", pairs=_scored(batch=3)),
    Sweep(
        claim=SCORE, name="reversed order", pairs=lambda s, reference: _zip(s.score(s.sequences[::-1])[::-1], reference)
    ),
    Sweep(claim=SCORE, name="more padding", pairs=_scored(padding=1)),
    Sweep(
        claim=PREFILL,
        name="one at a time",
        pairs=lambda s, reference: [
            pair
            for i, sequence in enumerate(s.sequences[:NUM_ALONE])
            for pair in _prefilled([sequence], s=s, reference=reference[i : i + 1])
        ],
    ),
    Sweep(
        claim=PREFILL,
        name="all together",
        pairs=lambda s, reference: _prefilled(s.sequences, s=s, reference=reference),
    ),
    Sweep(
        claim=PREFILL,
        name="reversed order",
        pairs=lambda s, reference: _prefilled(s.sequences[::-1], s=s, reference=reference[::-1]),
    ),
    Sweep(
        claim=PREFILL,
        name="more padding",
        pairs=lambda s, _: _prefilled(s.sequences, s=s, reference=s.score(s.sequences, padding=1)),
    ),
    Sweep(claim=DECODE, name="one at a time", pairs=lambda s, _: s.decode(s.prompts[:NUM_ALONE], together=1)),
    Sweep(claim=DECODE, name="three at a time", pairs=lambda s, _: s.decode(s.prompts[: 2 * NUM_ALONE], together=3)),
    Sweep(claim=DECODE, name="reversed order", pairs=lambda s, _: s.decode(s.prompts[::-1])),
    Sweep(claim=DECODE, name="more padding", pairs=lambda s, _: s.decode(s.prompts, padding=1)),
)


def check_claims(subjects: Subjects, *, on_sweep: Callable[[int, int], None]) -> tuple[Claim, ...]:
    """Every sweep, counted over all ranks. Every rank calls it; `on_sweep(done, total)` after each."""
    reference = subjects.score(subjects.sequences)
    claims: list[Claim] = []
    for sweep in SWEEPS:
        n, n_exact = _over_ranks(sweep.pairs(subjects, reference))
        claims.append(Claim(name=sweep.claim, sweep=sweep.name, n=n, n_exact=n_exact))
        on_sweep(len(claims), len(SWEEPS))
    return tuple(claims)


def _over_ranks(pairs: Pairs) -> tuple[int, int]:
    """Tokens, and those of them that are equal as integers."""
    mine = (0, 0)
    if is_scoring_rank() and is_first_of_its_replica():
        n = sum(len(one) for one, _ in pairs)
        mine = n, n - sum(rows_that_differ(one[:, None], right=other[:, None]) for one, other in pairs)
    everyone: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(everyone, mine)
    return sum(part[0] for part in everyone), sum(part[1] for part in everyone)


def _parts(prompts: Sequence[Sequence[int]], *, size: int | None) -> list[Sequence[Sequence[int]]]:
    size = len(prompts) if size is None else size
    return [prompts[i : i + size] for i in range(0, len(prompts), size)]


def _silent(done: int, total: int) -> None:
    del done, total

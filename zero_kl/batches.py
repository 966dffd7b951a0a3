"""Sequences as padded micro-batches of one shape: what scoring and training feed the model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from launcher.schema import RunConfig


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """`tokens`, `positions` and `targets` are [micro_batch_size, padded_length] int64 on this rank's device.

    `lengths` is the number of predicted tokens per row (the sequence's length minus one); a row beyond the last
    sequence has length 0.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    targets: torch.Tensor
    lengths: tuple[int, ...]


def row_multiple(config: RunConfig) -> int:
    """Rows are padded to a multiple of this: what was asked for, and whole shares where sequences are split over TP."""
    parallelism = config.parallelism
    shares = parallelism.tensor_model_parallel_size if parallelism.sequence_parallel else 1
    return math.lcm(config.performance.make_sequence_length_divisible_by, shares)


def padded_length(sequences: Sequence[Sequence[int]], *, multiple: int) -> int:
    """Length of every row: the longest sequence's predictions, rounded up to `multiple`."""
    longest = max(len(s) for s in sequences) - 1
    return -(-longest // multiple) * multiple


def micro_batches(
    sequences: Sequence[Sequence[int]], *, micro_batch_size: int, length: int, device: torch.device
) -> list[MicroBatch]:
    """Split the sequences, in order; the last batch is filled with empty rows so that all shapes are equal."""
    positions = torch.arange(length, device=device).expand(micro_batch_size, -1).contiguous()
    batches: list[MicroBatch] = []
    for start in range(0, len(sequences), micro_batch_size):
        rows = sequences[start : start + micro_batch_size]
        tokens = torch.zeros(micro_batch_size, length, dtype=torch.int64)
        targets = torch.zeros_like(tokens)
        for row, sequence in enumerate(rows):
            ids = torch.as_tensor(sequence, dtype=torch.int64)
            tokens[row, : len(ids) - 1] = ids[:-1]
            targets[row, : len(ids) - 1] = ids[1:]
        lengths = [len(s) - 1 for s in rows] + [0] * (micro_batch_size - len(rows))
        batches.append(
            MicroBatch(
                tokens=tokens.to(device), positions=positions, targets=targets.to(device), lengths=tuple(lengths)
            )
        )
    return batches

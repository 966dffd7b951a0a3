"""Compares the log-probabilities that generation reported with those of the training forward, bit for bit.

Owns the counts and the KL estimators. Runs on the CPU in numpy float64: megatron-core's batch-invariant mode replaces
`aten::mean` and refuses float64, so no statistic may go through torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from zero_kl.verdict import Deltas, Measurement, Mismatch

type FloatArray = np.ndarray[tuple[int], np.dtype[np.float32]]


@dataclass(frozen=True, kw_only=True)
class Response:
    """One request's response and its raw log-probabilities, as generation and as training see them.

    `generation` and `training` are fp32 CPU tensors of shape [len(tokens)]; anything else is our bug.
    """

    request: int
    prompt_length: int
    tokens: tuple[int, ...]
    generation: torch.Tensor
    training: torch.Tensor


def compare(responses: Sequence[Response], *, step: int) -> Measurement:
    """The figures over all response tokens, after `step` optimizer steps.

    Equal means equal as 32-bit integers, so -0.0 is not 0.0, and NaN is equal to the same NaN only; `num_nan` counts
    NaN, and no measurement with one is zero. Estimators, per token and averaged, with
    log r = training - generation (0 where the bits are equal) and tokens sampled by generation:
    k1 = -log r, k2 = (log r)^2 / 2, k3 = (r - 1) - log r. Each estimates KL(generation || training) in nats:
    Schulman, "Approximating KL Divergence", http://joschu.net/blog/kl-approx.html. In fp32, k3 is exactly 0 for
    many tokens that differ; hence float64, and hence the verdict is never taken from it.
    """
    requests = [r.request for r in responses]
    assert len(set(requests)) == len(requests), f"a request is compared twice: {requests}"
    generation = _joined([_checked(r.generation, response=r, side="generation") for r in responses])
    training = _joined([_checked(r.training, response=r, side="training") for r in responses])
    exact = generation.view(np.int32) == training.view(np.int32)
    positions = np.concatenate([np.arange(len(r.tokens)) for r in responses] or [np.arange(0)])
    # NaN and infinities are counted and reported, not warned about.
    with np.errstate(invalid="ignore", over="ignore"):
        log_r = np.where(exact, 0.0, training.astype(np.float64) - generation.astype(np.float64))
        k3 = np.expm1(log_r) - log_r
    return Measurement(
        step=step,
        n=exact.size,
        n_exact=int(exact.sum()),
        num_nan=int((np.isnan(generation) | np.isnan(training)).sum()),
        max_abs_diff=float(np.abs(log_r).max()) if log_r.size else float("nan"),
        mean_abs_diff=_mean(np.abs(log_r)),
        k1=_mean(-log_r),
        k2=_mean(log_r**2 / 2),
        k3=_mean(k3),
        first_mismatch=_first_mismatch(responses, exact=exact, step=step),
        deltas=Deltas(
            exact=tuple(np.bincount(positions[exact]).tolist()),
            positions=tuple(positions[~exact].tolist()),
            values=tuple(log_r[~exact].tolist()),
        ),
    )


def _checked(values: torch.Tensor, *, response: Response, side: str) -> FloatArray:
    wanted = (torch.float32, (len(response.tokens),), "cpu")
    found = (values.dtype, tuple(values.shape), values.device.type)
    assert found == wanted, f"request {response.request}: {side} log-probs are {found}, not {wanted}"
    return values.detach().numpy()


def _joined(parts: list[FloatArray]) -> FloatArray:
    return np.concatenate(parts or [np.empty(0, np.float32)])


def _mean(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    return float(values.mean()) + 0.0 if values.size else float("nan")  # + 0.0: the mean of -0.0 is written 0


def _first_mismatch(responses: Sequence[Response], *, exact: np.ndarray, step: int) -> Mismatch | None:
    if exact.all():
        return None
    position = int(exact.argmin())  # over all responses; the loop takes it down to one
    for response in responses:
        if position < len(response.tokens):
            return Mismatch(
                step=step,
                request=response.request,
                position=position,
                absolute_position=response.prompt_length + position,
                token=response.tokens[position],
                sequence_length_mod_64=(response.prompt_length + len(response.tokens)) % 64,
                generation=float(response.generation[position]),
                training=float(response.training[position]),
            )
        position -= len(response.tokens)
    raise AssertionError("a mismatch beyond the last response")

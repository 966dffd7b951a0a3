"""Sampling with Megatron's own dynamic engine (paged KV cache, continuous batching), with raw log-probabilities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.inference.engines import DynamicInferenceEngine
from megatron.core.models.gpt.gpt_model import GPTModel

from launcher.errors import ExperimentError
from launcher.schema import RunConfig
from zero_kl.engine import sampling_params, serving
from zero_kl.graphs import capturable
from zero_kl.inference import graph_fields, inference_fields, sampling_fields


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """One request: the response's token ids and their raw fp32 log-probabilities, shape [len(tokens)], on the CPU."""

    tokens: tuple[int, ...]
    logprobs: torch.Tensor


def generate(
    model: GPTModel,
    *,
    prompts: Sequence[Sequence[int]],
    tokenizer: Any,
    config: RunConfig,
    on_finished: Callable[[int, int], None],
) -> list[Sampled]:
    """Sample `max_new_tokens` for every prompt, in the prompts' order; `on_finished(done, total)` as requests end.

    The model is unwrapped (no DDP, no precision wrapper) and is left in evaluation mode. Every rank of a model-parallel
    group calls this with the same prompts. Raises ExperimentError where the engine gives up on a request.
    """
    model.eval()
    sampling = sampling_params(sampling_fields(config.generation))
    with (
        capturable(model, fields=graph_fields(config.generation)),
        serving(model, tokenizer=tokenizer, config=config, fields=inference_fields(config)) as engine,
    ):
        for request, prompt in enumerate(prompts):
            engine.add_request(request, list(prompt), sampling)
        finished = _collect(engine, num_requests=len(prompts), on_finished=on_finished)
        del engine  # the last name for it in this frame, or its KV cache would outlive the block
    return finished


def _collect(
    engine: DynamicInferenceEngine, *, num_requests: int, on_finished: Callable[[int, int], None]
) -> list[Sampled]:
    finished: dict[int, Sampled] = {}
    while engine.has_unfinished_requests():
        step: Any = engine.step_modern()  # upstream's annotation says a tuple, it is a dict
        for record in step["finished_request_records"]:
            request = record.merge()
            if request.generated_log_probs is None:
                raise ExperimentError(f"error: the engine gave up on request {request.request_id}: {request.events}")
            finished[request.request_id] = Sampled(
                tokens=tuple(int(t) for t in request.generated_tokens),
                logprobs=torch.tensor(request.generated_log_probs, dtype=torch.float32),
            )
        on_finished(len(finished), num_requests)
    missing = [i for i in range(num_requests) if i not in finished]
    if missing:
        raise ExperimentError(f"error: the engine never took request(s) {missing}: too long for one of its steps")
    return [finished[i] for i in range(num_requests)]

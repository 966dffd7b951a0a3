"""Sampling with Megatron's own dynamic engine (paged KV cache, continuous batching), with raw log-probabilities."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.inference.config import InferenceConfig, MambaInferenceStateConfig
from megatron.core.inference.contexts import DynamicInferenceContext
from megatron.core.inference.engines import DynamicInferenceEngine
from megatron.core.inference.model_inference_wrappers.gpt.gpt_inference_wrapper import GPTInferenceWrapper
from megatron.core.inference.sampling_params import SamplingParams
from megatron.core.inference.text_generation_controllers.text_generation_controller import TextGenerationController
from megatron.core.inference.utils import InferenceMode
from megatron.core.models.gpt.gpt_model import GPTModel

from launcher.errors import ExperimentError
from launcher.schema import RunConfig
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
    with capturable(model, fields=graph_fields(config.generation)):
        return _generate(model, prompts=prompts, tokenizer=tokenizer, config=config, on_finished=on_finished)


def _generate(
    model: GPTModel,
    *,
    prompts: Sequence[Sequence[int]],
    tokenizer: Any,
    config: RunConfig,
    on_finished: Callable[[int, int], None],
) -> list[Sampled]:
    """One engine's life; it captures its graphs, if any, when it is made."""
    context = DynamicInferenceContext(
        model_config=model.config, inference_config=_inference_config(model, config=config)
    )
    engine = DynamicInferenceEngine(TextGenerationController(GPTInferenceWrapper(model, context), tokenizer), context)
    sampling = SamplingParams(**_upstream(sampling_fields(config.generation)))
    try:
        for request, prompt in enumerate(prompts):
            engine.add_request(request, list(prompt), sampling)
        return _collect(engine, num_requests=len(prompts), on_finished=on_finished)
    finally:
        InferenceMode.unset_active()  # else the next training forward asserts that logits are gathered
        # Buffers that sequence parallelism shares were made in inference mode, where training may not write.
        parallel_state.get_global_memory_buffer().buffer.clear()
        del engine, context
        gc.collect()  # the engine's cycles hold the KV cache; a second one would not fit beside it


def _inference_config(model: GPTModel, *, config: RunConfig) -> InferenceConfig:
    """The engine's configuration; the state of Mamba layers only where the model has some."""
    dtype = config.generation.mamba_inference_ssm_states_dtype
    states = MambaInferenceStateConfig.from_model(
        model, ssm_states_dtype=None if dtype is None else getattr(torch, dtype.value)
    )
    fields = _upstream(inference_fields(config))
    return InferenceConfig(mamba_inference_state_config=states, pg_collection=model.pg_collection, **fields)


def _upstream(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Our enums by value, which upstream's own enums of strings equal."""
    return {name: value.value if isinstance(value, Enum) else value for name, value in fields.items()}


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

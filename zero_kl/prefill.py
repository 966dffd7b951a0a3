"""The engine's own log-probabilities of given tokens: prefill of whole sequences, nothing of it sampled."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from enum import Enum
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.inference.config import InferenceConfig
from megatron.core.inference.contexts import DynamicInferenceContext
from megatron.core.inference.engines import DynamicInferenceEngine
from megatron.core.inference.model_inference_wrappers.gpt.gpt_inference_wrapper import GPTInferenceWrapper
from megatron.core.inference.sampling_params import SamplingParams
from megatron.core.inference.text_generation_controllers.text_generation_controller import TextGenerationController
from megatron.core.inference.utils import InferenceMode
from megatron.core.models.gpt.gpt_model import GPTModel

from launcher.errors import ExperimentError
from launcher.schema import RunConfig
from zero_kl.inference import inference_fields, sampling_fields


def prefill(
    model: GPTModel, *, sequences: Sequence[Sequence[int]], tokenizer: Any, config: RunConfig
) -> list[torch.Tensor]:
    """fp32 CPU log-probabilities of tokens 1.. of each sequence but its last, shape [len - 2].

    The last token is left out: the engine wants room for one that it samples. Without CUDA graphs; the model is as for
    `zero_kl.generate`. Raises ExperimentError where a sequence does not fit into one of the engine's steps.
    """
    model.eval()
    fields = {**inference_fields(config), "num_cuda_graphs": None, "materialize_only_last_token_logits": False}
    context = DynamicInferenceContext(model_config=model.config, inference_config=InferenceConfig(**_upstream(fields)))
    engine = DynamicInferenceEngine(TextGenerationController(GPTInferenceWrapper(model, context), tokenizer), context)
    wish = {**sampling_fields(config.generation), "num_tokens_to_generate": 1, "skip_prompt_log_probs": False}
    found: dict[int, torch.Tensor] = {}
    try:
        for request, sequence in enumerate(sequences):
            engine.add_request(request, list(sequence[:-1]), SamplingParams(**_upstream(wish)))
        while engine.has_unfinished_requests():
            step: Any = engine.step_modern()
            for record in step["finished_request_records"]:
                request = record.merge()
                found[request.request_id] = torch.tensor(request.prompt_log_probs, dtype=torch.float32)
    finally:  # as in `zero_kl.generate`, for the reasons given there
        InferenceMode.unset_active()
        parallel_state.get_global_memory_buffer().buffer.clear()
        del engine, context
        gc.collect()
    if len(found) < len(sequences):
        raise ExperimentError(
            "error: the engine's steps are too short for whole sequences: raise generation.max_tokens"
        )
    return [found[i] for i in range(len(sequences))]


def _upstream(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value.value if isinstance(value, Enum) else value for name, value in fields.items()}

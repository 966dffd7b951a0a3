"""The engine's own log-probabilities of given tokens: prefill of whole sequences, nothing of it sampled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from megatron.core.models.gpt.gpt_model import GPTModel

from launcher.errors import ExperimentError
from launcher.schema import RunConfig
from zero_kl.engine import sampling_params, serving
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
    wish = {**sampling_fields(config.generation), "num_tokens_to_generate": 1, "skip_prompt_log_probs": False}
    found: dict[int, torch.Tensor] = {}
    with serving(model, tokenizer=tokenizer, config=config, fields=fields) as engine:
        for request, sequence in enumerate(sequences):
            engine.add_request(request, list(sequence[:-1]), sampling_params(wish))
        while engine.has_unfinished_requests():
            step: Any = engine.step_modern()
            for record in step["finished_request_records"]:
                request = record.merge()
                found[request.request_id] = torch.tensor(request.prompt_log_probs, dtype=torch.float32)
        del engine  # the last name for it in this frame, or its KV cache would outlive the block
    if len(found) < len(sequences):
        raise ExperimentError(
            "error: the engine's steps are too short for whole sequences: raise generation.max_tokens"
        )
    return [found[i] for i in range(len(sequences))]

"""The one log-softmax that training and scoring use: the routine of megatron-core's inference, row by row."""

from __future__ import annotations

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel import gather_from_tensor_model_parallel_region


def token_logprobs(logits: torch.Tensor, *, targets: torch.Tensor) -> torch.Tensor:
    """Raw log-probabilities of `targets`, fp32, shape [batch, sequence]; differentiable.

    logits: [batch, sequence, vocabulary / TP] as the last pipeline stage returns them. Generation takes `log_softmax`
    of a whole fp32 row (megatron-core 0.19.2, `DynamicInferenceContext._processed_log_probs`). Megatron's
    vocabulary-parallel cross entropy sums exponentials per rank instead and ends in other last bits, so with TP > 1 the
    row is gathered first.
    """
    if parallel_state.get_tensor_model_parallel_world_size() > 1:
        logits = gather_from_tensor_model_parallel_region(logits)
    rows = torch.log_softmax(logits.float(), dim=-1)
    return rows.gather(-1, targets.unsqueeze(-1)).squeeze(-1)

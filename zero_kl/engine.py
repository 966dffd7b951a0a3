"""The life of one of Megatron's dynamic engines: made for a model, used, and gone without a trace.

Owns what must be undone after it. What is asked of it is `generate`'s and `prefill`'s.
"""

from __future__ import annotations

import gc
from collections.abc import Generator, Mapping
from contextlib import contextmanager
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

from launcher.schema import RunConfig


@contextmanager
def serving(
    model: GPTModel, *, tokenizer: Any, config: RunConfig, fields: Mapping[str, Any]
) -> Generator[DynamicInferenceEngine]:
    """An engine for the block; `fields` are InferenceConfig's. It captures its graphs, if any, when it is made.

    The state of Mamba layers is there only where the model has some.
    """
    dtype = config.generation.mamba_inference_ssm_states_dtype
    states = MambaInferenceStateConfig.from_model(
        model, ssm_states_dtype=None if dtype is None else getattr(torch, dtype.value)
    )
    inference_config = InferenceConfig(
        mamba_inference_state_config=states, pg_collection=model.pg_collection, **_upstream(fields)
    )
    context = DynamicInferenceContext(model_config=model.config, inference_config=inference_config)
    engine = DynamicInferenceEngine(TextGenerationController(GPTInferenceWrapper(model, context), tokenizer), context)
    try:
        yield engine
    finally:
        InferenceMode.unset_active()  # else the next training forward asserts that logits are gathered
        # Buffers that sequence parallelism shares were made in inference mode, where training may not write.
        parallel_state.get_global_memory_buffer().buffer.clear()
        del engine, context
        gc.collect()  # the engine's cycles hold the KV cache; a second one would not fit beside it


def sampling_params(fields: Mapping[str, Any]) -> SamplingParams:
    """megatron-core's, of our values."""
    return SamplingParams(**_upstream(fields))


def _upstream(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Our enums by value, which upstream's own enums of strings equal."""
    return {name: value.value if isinstance(value, Enum) else value for name, value in fields.items()}

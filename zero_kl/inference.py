"""What generation hands to megatron-core's engine: arguments of InferenceConfig and SamplingParams, fields of graphs.

Owns no rule and no field that the model is built with; those are in `megatron_setup.generation`. Torch-free.
"""

from __future__ import annotations

from typing import Any

from launcher.schema import GenerationConfig, RunConfig


def inference_fields(config: RunConfig) -> dict[str, Any]:
    """Arguments of InferenceConfig, in upstream's spelling; enums are ours.

    0 CUDA graphs are null upstream. Logits are made for the last token only: prompts' log-probabilities are not read.
    """
    generation = config.generation
    longest = generation.max_sequence_length
    return {
        "max_sequence_length": config.model.seq_length if longest is None else longest,
        "buffer_size_gb": generation.buffer_size_gb,
        "block_size_tokens": generation.block_size_tokens,
        "max_requests": generation.max_requests,
        "max_tokens": generation.max_tokens,
        "enable_chunked_prefill": generation.enable_chunked_prefill,
        "enable_prefix_caching": generation.enable_prefix_caching,
        "num_speculative_tokens": generation.num_speculative_tokens,
        "kv_cache_management_mode": generation.kv_cache_management_mode,
        "static_kv_memory_pointers": generation.static_kv_memory_pointers,
        "unified_memory_level": generation.unified_memory_level,
        "num_cuda_graphs": generation.num_cuda_graphs or None,
        "cuda_graph_sizing_distribution": generation.cuda_graph_sizing_distribution,
        "use_cuda_graphs_for_non_decode_steps": generation.use_cuda_graphs_for_non_decode_steps,
        "logprobs_mode": generation.logprobs_mode,
        "materialize_only_last_token_logits": True,
    }


def sampling_fields(generation: GenerationConfig) -> dict[str, Any]:
    """Arguments of SamplingParams. No token ends a request, so all get the same length; top_p off is 0 upstream."""
    return {
        "temperature": generation.temperature,
        "top_k": generation.top_k,
        "top_p": 0.0 if generation.top_p == 1.0 else generation.top_p,
        "num_tokens_to_generate": generation.max_new_tokens,
        "return_log_probs": True,
        "skip_prompt_log_probs": True,
        "termination_id": -1,
    }


def graph_fields(generation: GenerationConfig) -> dict[str, str]:
    """Fields of the model's configuration that make an engine capture its decode steps, in upstream's spelling.

    They hold for the life of an engine only (`zero_kl.graphs`).
    """
    return {
        "cuda_graph_impl": generation.cuda_graph_impl.value,
        "inference_cuda_graph_scope": generation.inference_cuda_graph_scope.value,
    }

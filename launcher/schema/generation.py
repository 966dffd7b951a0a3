"""Generation with Megatron's own dynamic engine: sampling, KV cache, CUDA graphs."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """Sizes are tokens unless the name says otherwise."""

    max_new_tokens: int = 32
    """Tokens sampled per request (no stop token is honoured: every request has the same length)."""

    temperature: float = 1.0
    """Softmax temperature of sampling; log-probabilities are raw and ignore it."""

    top_p: float = 1.0
    """Nucleus threshold. 1: off."""

    top_k: int = 0
    """Sample among the k likeliest tokens. 0: off."""

    block_size_tokens: int = 16
    """Tokens per KV-cache block."""

    buffer_size_gb: float = 0.05
    """KV-cache buffer per rank."""

    max_requests: int = 32
    """Requests in flight."""

    max_tokens: int = 1024
    """Tokens per engine step (prefill and decode)."""

"""Rules about what the engine holds: tokens of a step, sequences, the KV cache.

What is handed to it is in `zero_kl.inference`. Torch-free.
"""

from launcher.requirement import Between, Check, Equals, Finding, OneOf, Requirement, Subject, show
from launcher.schema import JobKind, RunConfig
from launcher.schema.generation import KvCacheManagementMode
from megatron_setup.rows import above_zero, where

_CONTEXT = "megatron-core 0.19.2 inference/contexts/dynamic_context.py"
_INFERENCE = "megatron-core 0.19.2 inference/config.py"
_ENGINE_NEEDS = "Megatron's engine"

TOKEN_ROUNDER = 64
"""`DynamicInferenceContext.TOKEN_ROUNDER`."""


def _draws_prompts(config: RunConfig) -> bool:
    return config.job.kind is JobKind.mismatch and config.job.prompts is None


def _step_fits(subject: Subject) -> Finding | None:
    """A step takes one token of each request in decode, and a whole prompt where prefill is not chunked."""
    config = subject.config
    found, ranks = config.generation.max_tokens, config.parallelism.tensor_model_parallel_size
    if ranks < 1:
        return None  # PL001 refuses it
    group = -(-TOKEN_ROUNDER // ranks) * ranks
    parts = {"max_requests": config.generation.max_requests}
    if _draws_prompts(config) and not config.generation.enable_chunked_prefill:
        parts["max_prompt_tokens"] = config.job.max_prompt_tokens
    least = _round_up(max(parts.values()), group=group)
    if found % group == 0 and found >= least:
        return None
    return Finding(
        found=show(found),
        wanted=f"a multiple of {group}, at least {least}",
        arithmetic=", ".join(f"{name} {value}" for name, value in parts.items()) + f" in groups of {group}",
        hints=(f"generation.max_tokens={max(least, _round_up(found, group=group))}",),
    )


def _round_up(value: int, *, group: int) -> int:
    return -(-value // group) * group


def _request_fits(subject: Subject) -> Finding | None:
    config = subject.config
    found, least = (
        config.generation.max_sequence_length,
        config.job.max_prompt_tokens + config.generation.max_new_tokens,
    )
    if found is None or found >= least:
        return None
    return Finding(
        found=show(found),
        wanted=f"at least {least}",
        arithmetic=f"max_prompt_tokens {config.job.max_prompt_tokens} + max_new_tokens "
        f"{config.generation.max_new_tokens} = {least}",
        hints=(f"generation.max_sequence_length={least}",),
    )


MOVING_CACHE = where(
    _ENGINE_NEEDS,
    text="the KV cache does not persist and unified memory is off",
    test=lambda c: (
        c.generation.kv_cache_management_mode is not KvCacheManagementMode.persist
        and c.generation.unified_memory_level == 0
    ),
)
DRAWN = where(
    _ENGINE_NEEDS,
    text="job.kind is mismatch and prompts are random",
    test=_draws_prompts,
)


ROWS: tuple[Requirement, ...] = (
    Requirement(
        code="GE020",
        key="generation.max_tokens",
        want=Check("whole groups of 64 tokens that hold a token of each request, and a whole prompt", _step_fits),
        why="the engine pads a step to whole groups and asserts that it fits; a prompt that does not is never taken",
        source=f"{_CONTEXT}, round_up_tokens and TokenOverflowError",
        reads=(
            "parallelism.tensor_model_parallel_size",
            "generation.max_requests",
            "generation.enable_chunked_prefill",
            "job.max_prompt_tokens",
        ),
    ),
    Requirement(
        code="GE022",
        key="generation.max_sequence_length",
        want=Check("the longest prompt and its response", _request_fits),
        when=DRAWN,
        why="the engine gives up on a longer request",
        source=f"{_CONTEXT}, MaxSequenceLengthOverflowError",
        reads=("job.max_prompt_tokens", "generation.max_new_tokens"),
    ),
    Requirement(
        code="GE023",
        key="generation.block_size_tokens",
        want=Between(low=1),
        why="it counts what must exist",
        source=_CONTEXT,
    ),
    Requirement(
        code="GE024",
        key="job.num_steps",
        want=Between(low=0),
        why="one measurement is made before the first step; fewer than no steps would measure nothing",
        source="launcher/jobs/mismatch.py",
    ),
    Requirement(
        code="GE025",
        key="generation.buffer_size_gb",
        want=above_zero("generation.buffer_size_gb", typed="0.05"),
        why="keys and values must lie somewhere",
        source=_CONTEXT,
    ),
    Requirement(
        code="GE026",
        key="generation.unified_memory_level",
        want=OneOf((0, 1)),
        why="megatron-core 0.19.2 knows these two levels",
        source=_INFERENCE,
    ),
    Requirement(
        code="GE027",
        key="generation.static_kv_memory_pointers",
        want=Equals(False),
        when=MOVING_CACHE,
        why="only torch_memory_saver, which is not installed here, could give a freed cache its old addresses back",
        source=_CONTEXT,
        reads=("generation.kv_cache_management_mode", "generation.unified_memory_level"),
    ),
)

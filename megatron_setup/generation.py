"""Generation. Owns the model's fields that the engine reads, the environment, the rules about sampling and the engine.

What goes to the engine itself is in `zero_kl.inference`. Torch-free.
"""

from typing import Any

from launcher.requirement import Between, Check, Condition, Equals, Finding, OneOf, Requirement, Subject, show
from launcher.schema import JobKind, PlatformKind, RunConfig
from launcher.schema.generation import InferenceCudaGraphScope, KvCacheManagementMode, LogprobsMode
from launcher.schema.performance import CudaGraphImpl
from megatron_setup.rows import has_experts, where

_CONTEXT = "megatron-core 0.19.2 inference/contexts/dynamic_context.py"
_ENGINE = "megatron-core 0.19.2 inference/engines/dynamic_engine.py"
_CONTROLLER = "megatron-core 0.19.2 inference/text_generation_controllers/text_generation_controller.py"
_SAMPLING = "megatron-core 0.19.2 inference/sampling/torch_sampling.py"
_INFERENCE = "megatron-core 0.19.2 inference/config.py"
_GRAPHS = "megatron-core 0.19.2 transformer/cuda_graph_config.py"


def provider_fields(config: RunConfig) -> dict[str, Any]:
    """CUDA graphs of decode, which belong to the model's layers, and the seed of sampling."""
    return {
        "cuda_graph_impl": config.generation.cuda_graph_impl,
        "inference_cuda_graph_scope": config.generation.inference_cuda_graph_scope,
        "inference_sampling_seed": config.job.seed,
    }


def environment(config: RunConfig) -> dict[str, str]:
    """NCCL_CUMEM_ENABLE=1 where weights travel to other ranks: their communicators need cuMem buffers."""
    if config.platform.kind is PlatformKind.cpu or config.generation.colocated:
        return {}
    return {"NCCL_CUMEM_ENABLE": "1"}


def _above_zero(key: str, *, typed: str, high: float | None = None) -> Check:
    text = "above 0" if high is None else f"above 0 and at most {high}"

    def test(subject: Subject) -> Finding | None:
        found = subject.value(key)
        if found > 0.0 and (high is None or found <= high):
            return None
        return Finding(found=show(found), wanted=text, hints=(f"{key}={typed}",))

    return Check(text, test)


def _at_least(key: str, *, text: str, sum_of: tuple[str, ...]) -> Check:
    """The value at `key`, where it is set, is at least the sum of those at `sum_of`."""

    def test(subject: Subject) -> Finding | None:
        found, parts = subject.value(key), [(name, subject.value(name)) for name in sum_of]
        least = sum(value for _, value in parts)
        if found is None or found >= least:
            return None
        total = " + ".join(f"{name} {value}" for name, value in parts)
        return Finding(
            found=show(found),
            wanted=f"at least {least}",
            arithmetic=total if len(parts) == 1 else f"{total} = {least}",
            hints=(f"{key}={least}",),
        )

    return Check(text, test)


def _has_heads(subject: Subject) -> Finding | None:
    drafted, heads = subject.config.generation.num_speculative_tokens, subject.config.mtp
    repeated = heads.mtp_num_layers is not None and heads.mtp_use_repeated_layer is True
    most = drafted if repeated else heads.mtp_num_layers or 0
    if 0 <= drafted <= most:
        return None
    return Finding(
        found=show(drafted),
        wanted=f"0 to mtp.mtp_num_layers ({show(heads.mtp_num_layers)})",
        hints=(f"generation.num_speculative_tokens={max(0, min(drafted, most))}",),
    )


_ENGINE_NEEDS = "Megatron's engine"
GRAPHS = where(
    _ENGINE_NEEDS,
    text="generation.cuda_graph_impl is local",
    test=lambda c: c.generation.cuda_graph_impl is CudaGraphImpl.local,
)
NO_GRAPHS = where(
    _ENGINE_NEEDS,
    text="generation.cuda_graph_impl is not local",
    test=lambda c: c.generation.cuda_graph_impl is not CudaGraphImpl.local,
)
EXPERTS = Condition(who=_ENGINE_NEEDS, text="the model has experts", test=has_experts)
TOP_K = where(_ENGINE_NEEDS, text="top_k is on", test=lambda c: c.generation.top_k > 0)
DRAFTED = where(
    _ENGINE_NEEDS, text="num_speculative_tokens is over 0", test=lambda c: c.generation.num_speculative_tokens > 0
)
MOVING_CACHE = where(
    _ENGINE_NEEDS,
    text="the KV cache does not persist and unified memory is off",
    test=lambda c: (
        c.generation.kv_cache_management_mode is not KvCacheManagementMode.persist
        and c.generation.unified_memory_level == 0
    ),
)
WHOLE_PROMPTS = where(
    _ENGINE_NEEDS,
    text="prompts are random and prefilled whole",
    test=lambda c: c.job.kind is JobKind.mismatch and c.job.prompts is None and not c.generation.enable_chunked_prefill,
)
DRAWN = where(
    _ENGINE_NEEDS,
    text="job.kind is mismatch and prompts are random",
    test=lambda c: c.job.kind is JobKind.mismatch and c.job.prompts is None,
)

GRAPH_ROWS: tuple[Requirement, ...] = (
    Requirement(
        code="GE001",
        key="generation.cuda_graph_impl",
        want=OneOf((CudaGraphImpl.none, CudaGraphImpl.local)),
        why="the engine captures graphs with megatron-core's own implementation only",
        source=f"{_ENGINE}, create_cuda_graphs",
    ),
    Requirement(
        code="GE002",
        key="generation.num_cuda_graphs",
        want=Between(low=1),
        when=GRAPHS,
        why="0 sizes is no graph",
        source=f"{_INFERENCE}, num_cuda_graphs",
        reads=("generation.cuda_graph_impl",),
    ),
    Requirement(
        code="GE003",
        key="generation.inference_cuda_graph_scope",
        want=OneOf((InferenceCudaGraphScope.layer, InferenceCudaGraphScope.block)),
        when=GRAPHS,
        why="a graph belongs to a layer or to the block of all layers",
        source=_GRAPHS,
        reads=("generation.cuda_graph_impl",),
    ),
    *(
        Requirement(
            code=code,
            key=key,
            want=Equals(off),
            when=NO_GRAPHS,
            why="there are no graphs",
            source=_GRAPHS,
            reads=("generation.cuda_graph_impl",),
        )
        for code, key, off in (
            ("GE004", "generation.num_cuda_graphs", 0),
            ("GE005", "generation.inference_cuda_graph_scope", InferenceCudaGraphScope.none),
            ("GE006", "generation.use_cuda_graphs_for_non_decode_steps", False),
            ("GE007", "moe.moe_pad_experts_for_cuda_graph_inference", False),
        )
    ),
    Requirement(
        code="GE008",
        key="generation.cuda_graph_impl",
        want=Equals(CudaGraphImpl.none),
        when=EXPERTS,
        why="the dispatcher waits for the number of tokens of each expert, and a capture may not wait: it fails",
        source="measured on one H200, 30 November 2026; megatron-core 0.19.2 transformer/moe/token_dispatcher.py",
    ),
)

SAMPLING_ROWS: tuple[Requirement, ...] = (
    Requirement(
        code="GE010",
        key="generation.temperature",
        want=_above_zero("generation.temperature", typed="1.0"),
        why="logits are divided by it; top_k=1 is greedy",
        source=_SAMPLING,
    ),
    Requirement(
        code="GE011",
        key="generation.top_p",
        want=_above_zero("generation.top_p", typed="1.0", high=1.0),
        why="0 is megatron-core's word for off; here that is 1",
        source=_SAMPLING,
    ),
    Requirement(
        code="GE012", key="generation.top_k", want=Between(low=0), why="it counts tokens; 0 is off", source=_SAMPLING
    ),
    Requirement(
        code="GE013",
        key="generation.top_p",
        want=Equals(1.0),
        when=TOP_K,
        why="megatron-core asserts that only one of the two cuts the distribution",
        source=_SAMPLING,
        reads=("generation.top_k",),
    ),
    Requirement(
        code="GE014",
        key="generation.logprobs_mode",
        want=Equals(LogprobsMode.raw_logprobs),
        when=DRAFTED,
        why="log-probabilities of drafted tokens are not processed",
        source=f"{_INFERENCE}, InferenceConfig.__post_init__ raises",
        reads=("generation.num_speculative_tokens",),
    ),
    Requirement(
        code="GE015",
        key="generation.num_speculative_tokens",
        want=Check("0 to mtp.mtp_num_layers", _has_heads),
        why="the model's own prediction heads draft, one token each unless one head is repeated",
        source=f"{_ENGINE}; {_CONTROLLER}",
        reads=("mtp.mtp_num_layers", "mtp.mtp_use_repeated_layer"),
    ),
)

CACHE_ROWS: tuple[Requirement, ...] = (
    Requirement(
        code="GE020",
        key="generation.max_tokens",
        want=_at_least("generation.max_tokens", text="max_requests", sum_of=("generation.max_requests",)),
        why="a decode step takes one token of each request",
        source=_CONTEXT,
        reads=("generation.max_requests",),
    ),
    Requirement(
        code="GE021",
        key="generation.max_tokens",
        want=_at_least("generation.max_tokens", text="the longest prompt", sum_of=("job.max_prompt_tokens",)),
        when=WHOLE_PROMPTS,
        why="a prompt that does not fit into one step is never taken",
        source=f"{_CONTEXT}, TokenOverflowError",
        reads=("job.max_prompt_tokens", "generation.enable_chunked_prefill"),
    ),
    Requirement(
        code="GE022",
        key="generation.max_sequence_length",
        want=_at_least(
            "generation.max_sequence_length",
            text="the longest prompt and its response",
            sum_of=("job.max_prompt_tokens", "generation.max_new_tokens"),
        ),
        when=DRAWN,
        why="the engine gives up on a longer request",
        source=f"{_CONTEXT}, MaxSequenceLengthOverflowError",
        reads=("job.max_prompt_tokens", "generation.max_new_tokens"),
    ),
    *(
        Requirement(code=code, key=key, want=Between(low=1), why="it counts what must exist", source=_CONTEXT)
        for code, key in (("GE023", "generation.block_size_tokens"), ("GE024", "generation.max_tokens"))
    ),
    Requirement(
        code="GE025",
        key="generation.buffer_size_gb",
        want=_above_zero("generation.buffer_size_gb", typed="0.05"),
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

REQUIREMENTS: tuple[Requirement, ...] = GRAPH_ROWS + SAMPLING_ROWS + CACHE_ROWS

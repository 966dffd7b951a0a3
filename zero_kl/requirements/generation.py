"""The recipe's rows about generation: what is sampled from, what is cached, and how the engine runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from launcher.requirement import Check, Condition, Equals, Finding, OneOf, Requirement, Severity, Subject, Want, show
from launcher.schema import Dtype, PlatformKind
from launcher.schema.generation import (
    CudaGraphSizingDistribution,
    GenerationBackend,
    GenerationConfig,
    InferenceCudaGraphScope,
    KvCacheManagementMode,
    LogprobsMode,
)
from launcher.schema.performance import CudaGraphImpl
from zero_kl.conditions import MEASURED, RECIPE, SSM, ZERO_KL, ZERO_KL_GPU, ZERO_KL_HOPPER, ZERO_KL_MODEL_PARALLEL
from zero_kl.requirements.kernels import ROW_MULTIPLE

NO_GRAPHS = ZERO_KL_GPU & Condition(
    who="zero-KL",
    text="platform is not hopper",
    test=lambda s: s.config.platform.kind is not PlatformKind.hopper,
)
_GRAPHS_WHY = "the recipe captures nothing; graphs of decode were measured exact on Hopper only"


_GRAPHS_OFF: Mapping[str, Any] = {
    "generation.cuda_graph_impl": CudaGraphImpl.none,
    "generation.num_cuda_graphs": 0,
    "generation.inference_cuda_graph_scope": InferenceCudaGraphScope.none,
    "generation.cuda_graph_sizing_distribution": CudaGraphSizingDistribution.exponential,
    "generation.use_cuda_graphs_for_non_decode_steps": False,
}


def _no_graphs(subject: Subject) -> Finding | None:
    """With what is read only where there are graphs."""
    found = subject.config.generation.cuda_graph_impl
    if found is CudaGraphImpl.none:
        return None
    hints = tuple(f"{key}={show(off)}" for key, off in _GRAPHS_OFF.items() if subject.value(key) != off)
    return Finding(found=show(found), wanted="none", hints=hints)


GRAPHS = ZERO_KL_HOPPER & Condition(
    who="zero-KL",
    text="generation.cuda_graph_impl is not none",
    test=lambda s: s.config.generation.cuda_graph_impl is not CudaGraphImpl.none,
)

BLOCK_GRAPHS = GRAPHS & Condition(
    who="zero-KL",
    text="generation.inference_cuda_graph_scope is block",
    test=lambda s: s.config.generation.inference_cuda_graph_scope is InferenceCudaGraphScope.block,
)


def _whole_tiles(subject: Subject) -> Finding | None:
    """megatron-core captures `max_requests` rows and smaller sizes, and fills a step up to the next captured one."""
    generation = subject.config.generation
    most, count = generation.max_requests, max(generation.num_cuda_graphs, 1)
    if count > 1 and generation.cuda_graph_sizing_distribution is CudaGraphSizingDistribution.exponential:
        return _sizes_finding(generation, arithmetic=f"exponential: {most} rows, halved down to 1")
    step = 2 * math.ceil(most // count / 2) if count > 1 else most
    if most % ROW_MULTIPLE == 0 and step % ROW_MULTIPLE == 0:
        return None
    return _sizes_finding(generation, arithmetic=f"steps of {step} rows up to {most}")


def _sizes_finding(generation: GenerationConfig, *, arithmetic: str) -> Finding:
    most = max(ROW_MULTIPLE, math.ceil(generation.max_requests / ROW_MULTIPLE) * ROW_MULTIPLE)
    return Finding(
        found=show(generation.num_cuda_graphs),
        wanted=f"captured sizes that are multiples of {ROW_MULTIPLE} rows",
        arithmetic=arithmetic,
        hints=(
            f"generation.num_cuda_graphs={most // ROW_MULTIPLE}",
            "generation.cuda_graph_sizing_distribution=linear",
            *((f"generation.max_requests={most}",) if most != generation.max_requests else ()),
        ),
    )


def _long_enough(subject: Subject) -> Finding | None:
    ours, training = subject.config.generation.max_sequence_length, subject.config.model.seq_length
    if ours is None or ours >= training:
        return None
    return Finding(
        found=str(ours),
        wanted=f"null or at least model.seq_length ({training})",
        hints=("generation.max_sequence_length=null",),
    )


def _same_layers(subject: Subject) -> Finding | None:
    ours, training = subject.config.generation.transformer_impl, subject.config.performance.transformer_impl
    if ours is None or ours is training:
        return None
    return Finding(
        found=show(ours),
        wanted=f"null or performance.transformer_impl ({show(training)})",
        hints=("generation.transformer_impl=null",),
    )


def _row(
    code: str, *, field: str, want: Want, why: str, source: str = RECIPE, when: Condition = ZERO_KL
) -> Requirement:
    return Requirement(code=code, key=f"generation.{field}", want=want, when=when, why=why, source=source)


SAMPLING: tuple[Requirement, ...] = (
    _row(
        "ZK050",
        field="backend",
        want=Equals(GenerationBackend.megatron),
        why="another engine has kernels of its own, none of them training's",
    ),
    _row(
        "ZK051",
        field="colocated",
        want=Equals(True),
        why="elsewhere generation runs on copied weights, and no check here sees the copy",
    ),
    _row(
        "ZK052",
        field="temperature",
        want=Equals(1.0),
        why="raw log-probabilities ignore the temperature that tokens were sampled with; only at 1 are they the "
        "sampled distribution's",
        source="megatron-core 0.19.2 inference/contexts/dynamic_context.py, raw_logprobs",
    ),
    _row(
        "ZK053",
        field="top_p",
        want=Equals(1.0),
        why="tokens of a cut distribution are scored with the whole one's probabilities",
        source="megatron-core 0.19.2 inference/contexts/dynamic_context.py, raw_logprobs",
    ),
    _row(
        "ZK054",
        field="top_k",
        want=Equals(0),
        why="tokens of a cut distribution are scored with the whole one's probabilities",
        source="megatron-core 0.19.2 inference/contexts/dynamic_context.py, raw_logprobs",
    ),
    _row(
        "ZK055",
        field="logprobs_mode",
        want=Equals(LogprobsMode.raw_logprobs),
        why="processed_logprobs are taken after temperature, top_k and top_p; training's are not",
        source="megatron-core 0.19.2 inference/config.py, InferenceConfig.logprobs_mode",
    ),
)

CACHE: tuple[Requirement, ...] = (
    _row(
        "ZK056",
        field="enable_chunked_prefill",
        want=Equals(False),
        why="a prompt in pieces attends through the paged cache with other tile borders than the whole prompt",
    ),
    _row(
        "ZK057",
        field="enable_prefix_caching",
        want=Equals(False),
        why="a shared block may hold keys and values of another batch, or of the weights before the last update",
    ),
    _row(
        "ZK058",
        field="kv_cache_management_mode",
        want=Equals(KvCacheManagementMode.recompute),
        why="the other modes carry keys and values over a weight update",
        source=f"{RECIPE}; megatron-core 0.19.2 inference/config.py, KVCacheManagementMode",
    ),
    _row(
        "ZK059",
        field="static_kv_memory_pointers",
        want=Equals(False),
        why="it serves CUDA graphs only, and with recompute it needs torch_memory_saver or unified memory",
        source=f"{RECIPE}; megatron-core 0.19.2 inference/config.py documents it",
    ),
    _row(
        "ZK060",
        field="num_speculative_tokens",
        want=Equals(0),
        why="a draft is verified in a step with several rows per request, whose logits were not shown equal to "
        "decode's",
    ),
    Requirement(
        code="ZK061",
        key="generation.max_sequence_length",
        want=Check(text="null or at least model.seq_length", test=_long_enough),
        when=ZERO_KL,
        why="the engine gives up on a request that does not fit, and training scores sequences of model.seq_length",
        source=RECIPE,
        reads=("model.seq_length",),
    ),
    _row(
        "ZK067",
        field="block_size_tokens",
        want=OneOf((256, 128, 64)),
        when=ZERO_KL_GPU,
        why="FlashAttention-4's paged prefill and decode were compared with its full kernel at these page sizes only",
        source=MEASURED,
    ),
)

ENGINE: tuple[Requirement, ...] = (
    Requirement(
        code="ZK019",
        key="generation.transformer_impl",
        want=Check(text="null or performance.transformer_impl", test=_same_layers),
        when=ZERO_KL,
        why="set otherwise it builds a second model and reshards the weights at every wake",
        source=RECIPE,
        reads=("performance.transformer_impl",),
    ),
    *(
        _row(code, field=field, want=Equals(off), when=NO_GRAPHS, why=_GRAPHS_WHY, source=f"{RECIPE}; {MEASURED}")
        for code, field, off in (
            ("ZK062", "cuda_graph_impl", CudaGraphImpl.none),
            ("ZK063", "num_cuda_graphs", 0),
            ("ZK064", "inference_cuda_graph_scope", InferenceCudaGraphScope.none),
        )
    ),
    _row(
        "ZK096",
        field="cuda_graph_impl",
        want=Check(text="none", test=_no_graphs),
        when=ZERO_KL_MODEL_PARALLEL,
        why="no graph of a rank's share of the model was shown exact; without graphs TP 2 and 4, and PP 2, were",
        source="docs/measurements/2026-12-01-h200-layouts.md",
    ),
    _row(
        "ZK065",
        field="use_cuda_graphs_for_non_decode_steps",
        want=Equals(False),
        why="a captured prefill is padded to the graph's token count and was not measured",
    ),
    Requirement(
        code="ZK068",
        key="generation.num_cuda_graphs",
        want=Check(text=f"graphs of whole tiles of {ROW_MULTIPLE} rows", test=_whole_tiles),
        when=GRAPHS,
        why=f"rows that fill no whole tiles of {ROW_MULTIPLE} may go through GEMMs of other kernels than a row in "
        "training: in graphs of 1 and 2 rows 71 of 256 log-probabilities were equal (dense; 115 with experts). "
        "Without graphs the engine fills each step up to 64 rows by itself",
        source=f"{MEASURED}; megatron-core 0.19.2 inference/batch_dimensions_utils.py",
        reads=("generation.max_requests", "generation.cuda_graph_sizing_distribution", "generation.cuda_graph_impl"),
    ),
    Requirement(
        code="ZK069",
        key="generation.inference_cuda_graph_scope",
        want=Equals(InferenceCudaGraphScope.layer),
        when=BLOCK_GRAPHS,
        severity=Severity.WARNING,
        why="one graph of all layers was measured exact on models of two layers only; graphs of a layer each also at "
        "full depth",
        source=f"docs/measurements/2026-11-30-h200-kernels.md: {MEASURED}",
        reads=("generation.cuda_graph_impl",),
    ),
    _row(
        "ZK066",
        field="mamba_inference_ssm_states_dtype",
        want=Equals(Dtype.float32),
        when=SSM,
        why="the engine's default rounds the state to BF16 after every token; training's scan rounds once a "
        "chunk at most",
        source=f"{RECIPE}; megatron-core 0.19.2 TransformerConfig.mamba_training_ssm_states_dtype",
    ),
)

REQUIREMENTS: tuple[Requirement, ...] = SAMPLING + CACHE + ENGINE

"""Generation. Owns the fields the model is built with, the environment, the rules about graphs and sampling.

Those about the engine's sizes are in `engine`, about a model of its own in `second_model_rules`; what the engine is
handed is in `zero_kl.inference`. Torch-free.
"""

from collections.abc import Mapping
from typing import Any

from launcher.requirement import Between, Check, Condition, Equals, Finding, OneOf, Requirement, Subject, show
from launcher.schema import Backend, PlatformKind, RunConfig
from launcher.schema.generation import CudaGraphSizingDistribution, InferenceCudaGraphScope, LogprobsMode
from launcher.schema.performance import CudaGraphImpl
from megatron_setup import engine, second_model_rules
from megatron_setup.rows import above_zero, has_experts, where

_ENGINE = "megatron-core 0.19.2 inference/engines/dynamic_engine.py"
_CONTROLLER = "megatron-core 0.19.2 inference/text_generation_controllers/text_generation_controller.py"
_SAMPLING = "megatron-core 0.19.2 inference/sampling/torch_sampling.py"
_INFERENCE = "megatron-core 0.19.2 inference/config.py"
_GRAPHS = "megatron-core 0.19.2 transformer/cuda_graph_config.py"
_DISPATCHER = "megatron-core 0.19.2 transformer/moe/token_dispatcher.py"


def provider_fields(config: RunConfig) -> dict[str, Any]:
    """The seed of sampling, and no CUDA graphs: layers built with them would capture the training forward.

    `zero_kl.graphs` gives them to the layers while an engine lives.
    """
    return {
        "cuda_graph_impl": CudaGraphImpl.none,
        "inference_cuda_graph_scope": InferenceCudaGraphScope.none,
        "inference_sampling_seed": config.job.seed,
    }


def environment(config: RunConfig) -> dict[str, str]:
    """NCCL_CUMEM_ENABLE=1 where weights travel to other ranks: their communicators need cuMem buffers."""
    if config.platform.kind is PlatformKind.cpu or config.generation.colocated:
        return {}
    return {"NCCL_CUMEM_ENABLE": "1"}


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
NO_GRAPHS = where(
    _ENGINE_NEEDS,
    text="generation.cuda_graph_impl is none",
    test=lambda c: c.generation.cuda_graph_impl is CudaGraphImpl.none,
)
THIS_VERSION = where("this version", text="always", test=lambda c: True)
TOP_K = where(_ENGINE_NEEDS, text="top_k is on", test=lambda c: c.generation.top_k > 0)
DRAFTED = where(
    _ENGINE_NEEDS, text="num_speculative_tokens is over 0", test=lambda c: c.generation.num_speculative_tokens > 0
)
GRAPHS = where(
    _ENGINE_NEEDS,
    text="generation.cuda_graph_impl is local",
    test=lambda c: c.generation.cuda_graph_impl is CudaGraphImpl.local,
)
EXPERTS = Condition(who=_ENGINE_NEEDS, text="the model has experts", test=has_experts)
OWN_DISPATCHER = where(
    "",
    text="zero_kl.backend is te_native or megatron",
    test=lambda c: c.zero_kl.backend in (Backend.te_native, Backend.megatron),
)
UPSTREAM_DISPATCHER = where("", text="zero_kl.backend is none", test=lambda c: c.zero_kl.backend is Backend.none)
GRAPH_READS: Mapping[str, Any] = {
    "generation.num_cuda_graphs": 0,
    "generation.inference_cuda_graph_scope": InferenceCudaGraphScope.none,
    "generation.use_cuda_graphs_for_non_decode_steps": False,
    "generation.cuda_graph_sizing_distribution": CudaGraphSizingDistribution.exponential,
    "moe.moe_pad_experts_for_cuda_graph_inference": False,
}
"""Read only where decode is captured; with their values when off."""

_OWNERS = (InferenceCudaGraphScope.layer, InferenceCudaGraphScope.block)


def _engines_own(subject: Subject) -> Finding | None:
    """The hint is local where a size and an owner of graphs are set, else none, with what is left of them off."""
    generation = subject.config.generation
    if generation.cuda_graph_impl in (CudaGraphImpl.none, CudaGraphImpl.local):
        return None
    wants_graphs = generation.num_cuda_graphs > 0 and generation.inference_cuda_graph_scope in _OWNERS
    left = () if wants_graphs else tuple(f"{k}={show(v)}" for k, v in GRAPH_READS.items() if subject.value(k) != v)
    return Finding(
        found=show(generation.cuda_graph_impl),
        wanted="none or local",
        hints=(f"generation.cuda_graph_impl={'local' if wants_graphs else 'none'}", *left),
    )


GRAPH_ROWS: tuple[Requirement, ...] = (
    *(
        Requirement(
            code=code,
            key=key,
            want=Equals(off),
            when=NO_GRAPHS,
            why="there are no graphs: generation.cuda_graph_impl is none, as in generation=gpu",
            source=_GRAPHS,
            reads=("generation.cuda_graph_impl",),
        )
        for code, (key, off) in zip(("GE002", "GE003", "GE004", "GE018", "GE005"), GRAPH_READS.items(), strict=True)
    ),
    Requirement(
        code="GE006",
        key="generation.cuda_graph_impl",
        want=Check("none or local", _engines_own),
        when=THIS_VERSION,
        why="the engine captures its steps with megatron-core's own graphs and with no others",
        source=f"{_GRAPHS}, ALLOWED_INFERENCE_SCOPES",
    ),
    Requirement(
        code="GE007",
        key="generation.inference_cuda_graph_scope",
        want=OneOf(_OWNERS),
        when=GRAPHS,
        why="without an owner nothing is captured",
        source=f"{_GRAPHS}, ALLOWED_INFERENCE_SCOPES",
        reads=("generation.cuda_graph_impl",),
    ),
    Requirement(
        code="GE008",
        key="generation.num_cuda_graphs",
        want=Between(low=1),
        when=GRAPHS,
        why="with no batch size captured every step runs without a graph",
        source="megatron-core 0.19.2 inference/batch_dimensions_utils.py",
        reads=("generation.cuda_graph_impl",),
    ),
    Requirement(
        code="GE009",
        key="moe.moe_pad_experts_for_cuda_graph_inference",
        want=Equals(True),
        when=GRAPHS & EXPERTS & UPSTREAM_DISPATCHER,
        why="the dispatcher sends the rows per expert to the host and waits, which no graph can hold; "
        "padding fixes their number",
        source=f"{_DISPATCHER}, _maybe_dtoh_and_synchronize",
        reads=("generation.cuda_graph_impl", "zero_kl.backend"),
    ),
    Requirement(
        code="GE016",
        key="moe.moe_pad_experts_for_cuda_graph_inference",
        want=Equals(False),
        when=GRAPHS & EXPERTS & OWN_DISPATCHER,
        why="there each expert has a row for every token of a captured step, and the router pads nothing",
        source="zero_kl/kernels/moe.py",
        reads=("generation.cuda_graph_impl", "zero_kl.backend"),
    ),
    Requirement(
        code="GE017",
        key="parallelism.expert_model_parallel_size",
        want=Equals(1),
        when=GRAPHS & EXPERTS & OWN_DISPATCHER,
        why="ranks that share experts would exchange a row for every token and expert",
        source="zero_kl/kernels/moe.py",
        reads=("generation.cuda_graph_impl", "zero_kl.backend"),
    ),
)

SAMPLING_ROWS: tuple[Requirement, ...] = (
    Requirement(
        code="GE010",
        key="generation.temperature",
        want=above_zero("generation.temperature", typed="1.0"),
        why="logits are divided by it; top_k=1 is greedy",
        source=_SAMPLING,
    ),
    Requirement(
        code="GE011",
        key="generation.top_p",
        want=above_zero("generation.top_p", typed="1.0", high=1.0),
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

REQUIREMENTS: tuple[Requirement, ...] = GRAPH_ROWS + SAMPLING_ROWS + engine.ROWS + second_model_rules.ROWS

"""Generation. Owns the model's fields that the engine reads, the environment, the rules about graphs and sampling.

Those about the engine's sizes are in `megatron_setup.engine`; what it is handed is in `zero_kl.inference`. Torch-free.
"""

from collections.abc import Mapping
from typing import Any

from launcher.requirement import Between, Check, Equals, Finding, Requirement, Subject, show
from launcher.schema import PlatformKind, RunConfig
from launcher.schema.generation import InferenceCudaGraphScope, LogprobsMode
from launcher.schema.performance import CudaGraphImpl
from megatron_setup import engine
from megatron_setup.rows import SwitchedOff, above_zero, where

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
    text="generation.cuda_graph_impl is not local",
    test=lambda c: c.generation.cuda_graph_impl is not CudaGraphImpl.local,
)
THIS_VERSION = where("this version", text="always", test=lambda c: True)
TOP_K = where(_ENGINE_NEEDS, text="top_k is on", test=lambda c: c.generation.top_k > 0)
DRAFTED = where(
    _ENGINE_NEEDS, text="num_speculative_tokens is over 0", test=lambda c: c.generation.num_speculative_tokens > 0
)
GRAPH_READS: Mapping[str, Any] = {
    "generation.num_cuda_graphs": 0,
    "generation.inference_cuda_graph_scope": InferenceCudaGraphScope.none,
    "generation.use_cuda_graphs_for_non_decode_steps": False,
    "moe.moe_pad_experts_for_cuda_graph_inference": False,
}
"""Read only where decode is captured; with their values when off."""

GRAPH_ROWS: tuple[Requirement, ...] = (
    Requirement(
        code="GE001",
        key="generation.cuda_graph_impl",
        want=SwitchedOff((CudaGraphImpl.none,), followers=GRAPH_READS),
        when=THIS_VERSION,
        why="each measurement makes its engine anew, and a graph would keep the KV cache of the last one; "
        "nor may the training forward between them be captured",
        source="zero_kl/generate.py; megatron-core 0.19.2 transformer/cuda_graphs.py, delete_cuda_graphs",
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
        for code, (key, off) in zip(("GE002", "GE003", "GE004", "GE005"), GRAPH_READS.items(), strict=True)
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

REQUIREMENTS: tuple[Requirement, ...] = GRAPH_ROWS + SAMPLING_ROWS + engine.ROWS

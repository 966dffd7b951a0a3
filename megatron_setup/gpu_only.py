"""What only a GPU has: the one place that keeps it away from the CPU platform. Refused there, so nothing of it is ever
set on a CPU's provider but its default. Torch-free.
"""

from typing import Any

from launcher.requirement import Condition, Equals, OneOf, Requirement, Want
from launcher.schema import PlatformKind
from launcher.schema.moe import TokenDispatcher
from launcher.schema.performance import AttentionBackend, CrossEntropyFusion, CudaGraphImpl

CPU = Condition(
    who="the CPU platform", text="platform is cpu", test=lambda s: s.config.platform.kind is PlatformKind.cpu
)

_KERNELS = "it chooses among kernels of Transformer Engine or FlashAttention, which no CPU has"
_FUSED = "the fused kernel is Transformer Engine's or APEX's; megatron-core does the same in torch without it"
_GRAPH = "it serves CUDA graphs"
_MEMORY = "it moves data between GPU memory and host memory"

_OFF_OR_NULL = OneOf((None, False))


def _row(code: str, *, key: str, want: Want, why: str) -> Requirement:
    return Requirement(code=code, key=key, want=want, when=CPU, why=why, source="megatron_setup/cpu/table.py")


def _off(*keys: tuple[str, str], why: str, value: Any) -> tuple[Requirement, ...]:
    want = _OFF_OR_NULL if value is None else Equals(value)
    return tuple(_row(code, key=key, want=want, why=why) for code, key in keys)


REQUIREMENTS: tuple[Requirement, ...] = (
    _row(
        "GP001",
        key="performance.attention_backend",
        want=Equals(AttentionBackend.auto),
        why=_KERNELS,
    ),
    _row("GP002", key="performance.flash_attention_version", want=Equals(None), why=_KERNELS),
    _row("GP003", key="precision.fp8", want=Equals(None), why="FP8 arithmetic is Transformer Engine's"),
    _row(
        "GP004",
        key="moe.moe_token_dispatcher_type",
        want=OneOf((TokenDispatcher.alltoall, TokenDispatcher.allgather)),
        why="DeepEP, HybridEP and NCCL EP are CUDA kernels",
    ),
    _row(
        "GP005",
        key="performance.cross_entropy_fusion_impl",
        want=OneOf((None, CrossEntropyFusion.native)),
        why=_FUSED,
    ),
    *_off(
        ("GP010", "performance.apply_rope_fusion"),
        ("GP011", "performance.masked_softmax_fusion"),
        ("GP012", "performance.gradient_accumulation_fusion"),
        ("GP013", "moe.moe_router_fusion"),
        why=_FUSED,
        value=None,
    ),
    *_off(("GP014", "moe.moe_permute_fusion"), why=_FUSED, value=False),
    _row("GP020", key="generation.cuda_graph_impl", want=Equals(CudaGraphImpl.none), why=_GRAPH),
    *_off(
        ("GP021", "performance.use_te_rng_tracker"),
        ("GP022", "performance.inference_rng_tracker"),
        ("GP023", "generation.static_kv_memory_pointers"),
        why=_GRAPH,
        value=False,
    ),
    *_off(
        ("GP030", "performance.fine_grained_activation_offloading"),
        ("GP031", "optimizer.optimizer_cpu_offload"),
        why=_MEMORY,
        value=False,
    ),
    _row("GP032", key="generation.unified_memory_level", want=Equals(0), why=_MEMORY),
    _row(
        "GP033",
        key="optimizer.use_precision_aware_optimizer",
        want=Equals(False),
        why="narrow optimizer state is a feature of Transformer Engine's FusedAdam",
    ),
    _row(
        "GP034",
        key="performance.deterministic_mode",
        want=Equals(False),
        why="the CPU's kernels are deterministic; the switch and its variables are CUDA's",
    ),
)

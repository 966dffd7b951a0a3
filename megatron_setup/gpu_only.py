"""What only a GPU has: the one place that keeps it away from the CPU platform.

It is refused there, so a CPU's provider never gets anything of it but the default. Torch-free.
"""

from typing import Any

from launcher.requirement import Condition, Equals, OneOf, Requirement, Want
from launcher.schema import PlatformKind
from launcher.schema.moe import TokenDispatcher
from launcher.schema.performance import AttentionBackend, CrossEntropyFusion, CudaGraphImpl
from megatron_setup.dispatcher import FLEX_READS, HYBRIDEP_READS
from megatron_setup.generation import GRAPH_READS
from megatron_setup.memory import OFFLOADING_READS
from megatron_setup.precision import FP8_READS
from megatron_setup.rows import SwitchedOff
from megatron_setup.update_rule import NOT_OFFLOADED

CPU = Condition(
    who="the CPU platform", text="platform is cpu", test=lambda s: s.config.platform.kind is PlatformKind.cpu
)

_CHOICE = "it chooses among kernels of Transformer Engine or FlashAttention, which no CPU has"
_FUSED = "the fused kernel is Transformer Engine's or APEX's; megatron-core does the same in torch without it"
_GRAPH = "it serves CUDA graphs"
_MEMORY = "it moves data between GPU memory and host memory"

_OFF = Equals(False)
_OFF_OR_NULL = OneOf((None, False))
_NULL = Equals(None)


def _without(*values: Any, reads: Any) -> SwitchedOff:
    return SwitchedOff(values, followers=reads)


_TABLE: tuple[tuple[str, str, Want, str], ...] = (
    ("GP001", "performance.attention_backend", Equals(AttentionBackend.auto), _CHOICE),
    ("GP002", "performance.flash_attention_version", _NULL, _CHOICE),
    ("GP003", "precision.fp8", _without(None, reads=FP8_READS), "FP8 arithmetic is Transformer Engine's"),
    (
        "GP004",
        "moe.moe_token_dispatcher_type",
        _without(TokenDispatcher.alltoall, TokenDispatcher.allgather, reads={**FLEX_READS, **HYBRIDEP_READS}),
        "DeepEP, HybridEP and NCCL EP are CUDA kernels",
    ),
    ("GP005", "performance.cross_entropy_fusion_impl", OneOf((None, CrossEntropyFusion.native)), _FUSED),
    ("GP010", "performance.apply_rope_fusion", _OFF_OR_NULL, _FUSED),
    ("GP011", "performance.masked_softmax_fusion", _OFF_OR_NULL, _FUSED),
    ("GP012", "performance.gradient_accumulation_fusion", _OFF, _FUSED),
    ("GP013", "moe.moe_router_fusion", _OFF_OR_NULL, _FUSED),
    ("GP014", "moe.moe_permute_fusion", _OFF, _FUSED),
    ("GP020", "generation.cuda_graph_impl", _without(CudaGraphImpl.none, reads=GRAPH_READS), _GRAPH),
    ("GP021", "performance.use_te_rng_tracker", _OFF, _GRAPH),
    ("GP022", "performance.inference_rng_tracker", _OFF, _GRAPH),
    ("GP030", "performance.fine_grained_activation_offloading", _without(False, reads=OFFLOADING_READS), _MEMORY),
    ("GP032", "generation.unified_memory_level", Equals(0), _MEMORY),
    (
        "GP034",
        "performance.deterministic_mode",
        _OFF,
        "the CPU's kernels are deterministic; the switch and its variables are CUDA's",
    ),
    ("GP035", "moe.moe_latent_size", _NULL, "the projections around the experts are Transformer Engine's"),
    ("GP036", "model.attention_dropout", Equals(0.0), "the reference attention draws no dropout"),
)

REQUIREMENTS: tuple[Requirement, ...] = (
    *(
        Requirement(code=code, key=key, want=want, when=CPU, why=why, source="megatron_setup/cpu/table.py")
        for code, key, want, why in _TABLE
    ),
    Requirement(
        code="GP033",
        key="optimizer.use_precision_aware_optimizer",
        want=_OFF,
        when=CPU & NOT_OFFLOADED,
        why="narrow optimizer state is a feature of Transformer Engine's FusedAdam",
        source="megatron_setup/cpu/table.py",
        reads=("optimizer.optimizer_cpu_offload",),
    ),
)

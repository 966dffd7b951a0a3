"""The recipe's rows about kernels of the training model: the switch, precision, attention, graphs, padding."""

from __future__ import annotations

from launcher.requirement import Check, Equals, Finding, OneOf, Requirement, Severity, Subject, show
from launcher.schema import Backend, Dtype
from launcher.schema.performance import AttentionBackend, CudaGraphImpl, TransformerImpl
from zero_kl.conditions import (
    BATCH_INVARIANT,
    CPU,
    GPU,
    MEASURED,
    ORDINARY,
    RECIPE,
    SSM,
    TRANSFORMER_CONFIG,
    ZERO_KL,
    ZERO_KL_CPU,
    ZERO_KL_GPU,
    ZERO_KL_HOPPER,
)

ROW_MULTIPLE = 64
"""Rows of a GEMM and of a norm come in multiples of this many; Transformer Engine's RMSNorm needs 32."""


def _multiple_of_row_tile(key: str) -> Check:
    """The key is null or a multiple of ROW_MULTIPLE; the hint is the next one up."""

    def test(subject: Subject) -> Finding | None:
        found = subject.value(key)
        if found is None or (found > 0 and found % ROW_MULTIPLE == 0):
            return None
        up = max(ROW_MULTIPLE, -(-found // ROW_MULTIPLE) * ROW_MULTIPLE)
        return Finding(
            found=show(found),
            wanted=f"a multiple of {ROW_MULTIPLE}",
            arithmetic=f"{found} mod {ROW_MULTIPLE} = {found % ROW_MULTIPLE}",
            hints=(f"{key}={up}",),
        )

    return Check(text=f"a multiple of {ROW_MULTIPLE}", test=test)


def _padding(code: str, *, key: str) -> Requirement:
    return Requirement(
        code=code,
        key=key,
        want=_multiple_of_row_tile(key),
        when=ZERO_KL_GPU,
        why="Transformer Engine's RMSNorm sums a row in an order that depends on the number of rows modulo 32 "
        "(seen at 928 and 2,274 rows on a GB200); whole tiles of 64 make a token's sums independent of how many "
        "rows there are",
        source=f"{RECIPE}; megatron-core 0.19.2 transformer/custom_layers/batch_invariant_kernels.py notes the "
        "two counts",
    )


def _only_measured(subject: Subject) -> Finding:
    kind = subject.config.platform.kind.value
    return Finding(found=f"{kind} (measured, not certified)", wanted="blackwell for the certified recipe")


SWITCH: tuple[Requirement, ...] = (
    Requirement(
        code="ZK001",
        key="zero_kl.backend",
        want=OneOf((Backend.te_native, Backend.megatron)),
        when=ZERO_KL_GPU,
        why="ordinary GEMMs split K for few rows and not for many: a decode step and a training row add in other "
        "orders (0.8 % of 32,768 tokens equal on a dense 0.89 B model)",
        source=MEASURED,
    ),
    Requirement(
        code="ZK002",
        key="zero_kl.batch_invariant_mode",
        want=Equals(True),
        when=ZERO_KL_GPU,
        why="it gives FlashAttention num_splits=1 on both sides; without it decode splits the keys by a heuristic",
        source="megatron-core 0.19.2 transformer/attention.py and extensions/transformer_engine.py",
    ),
    Requirement(
        code="ZK070",
        key="zero_kl.backend",
        want=Equals(Backend.cpu_reference),
        when=ZERO_KL_CPU,
        why="torch's CPU linear gives other last bits for few rows than for many; only the reference kernels do not "
        "(0 of 28,626 rows differ)",
        source="measured on two x86-64 cores, torch 2.11.0, one thread",
    ),
    Requirement(
        code="ZK071",
        key="zero_kl.backend",
        want=OneOf((Backend.none, Backend.te_native, Backend.megatron)),
        when=ORDINARY & GPU,
        why="cpu_reference replaces torch's CPU kernels and would change nothing on a GPU",
        source="zero_kl/cpu_kernels.py",
    ),
    Requirement(
        code="ZK072",
        key="zero_kl.backend",
        want=OneOf((Backend.none, Backend.cpu_reference)),
        when=ORDINARY & CPU,
        why="te_native and megatron are CUDA kernels",
        source="zero_kl/kernels",
    ),
    Requirement(
        code="ZK073",
        key="zero_kl.batch_invariant_mode",
        want=Equals(False),
        when=CPU,
        why="megatron-core's switch pins FlashAttention, which no CPU has; zero_kl.backend=cpu_reference stands in",
        source=TRANSFORMER_CONFIG,
    ),
    Requirement(
        code="ZK090",
        key="platform.kind",
        want=Check(text="blackwell", test=_only_measured),
        when=ZERO_KL_HOPPER,
        severity=Severity.WARNING,
        why="the published recipe covers sm_100 and newer; on sm_90, exactness rests on this project's own "
        "measurements (dense and MoE, n = 32,768 each)",
        source=MEASURED,
    ),
)

PRECISION: tuple[Requirement, ...] = (
    Requirement(
        code="ZK013",
        key="precision.dtype",
        want=Equals(Dtype.bfloat16),
        when=ZERO_KL_GPU,
        why="FlashAttention-4 takes 16-bit inputs only, and the recipe was proven in BF16",
        source=RECIPE,
    ),
    Requirement(
        code="ZK074",
        key="precision.dtype",
        want=OneOf((Dtype.bfloat16, Dtype.float32)),
        when=ZERO_KL_CPU,
        why="the reference kernels were measured exact in these two",
        source="measured on two x86-64 cores, torch 2.11.0: Llama, Qwen2, Qwen3, Qwen3-MoE",
    ),
    Requirement(
        code="ZK014",
        key="precision.fp8",
        want=Equals(None),
        when=ZERO_KL,
        why="FP8 scales are taken over a whole tensor or block, so a token's bits depend on its neighbours",
        source=RECIPE,
    ),
)

ATTENTION: tuple[Requirement, ...] = (
    Requirement(
        code="ZK016",
        key="performance.attention_backend",
        want=Equals(AttentionBackend.flash),
        when=BATCH_INVARIANT,
        why="generation's paged attention is FlashAttention; training must run the same kernel",
        source=TRANSFORMER_CONFIG,
    ),
    Requirement(
        code="ZK017",
        key="performance.flash_attention_version",
        want=Equals(4),
        when=BATCH_INVARIANT,
        why="left open, training and generation each take what they find; version 2 has no fixed split count, "
        "and version 3 is outside the recipe",
        source=f"megatron-core 0.19.2 transformer/transformer_config.py asserts 3 or 4; {RECIPE}",
    ),
    Requirement(
        code="ZK018",
        key="performance.transformer_impl",
        want=Equals(TransformerImpl.transformer_engine),
        when=ZERO_KL_GPU,
        why="the invariant GEMMs and norms are Transformer Engine's",
        source=RECIPE,
    ),
)

REST: tuple[Requirement, ...] = (
    _padding("ZK015", key="performance.make_sequence_length_divisible_by"),
    _padding("ZK024", key="performance.sequence_packing.train_mb_tokens"),
    _padding("ZK025", key="performance.sequence_packing.logprob_mb_tokens"),
    Requirement(
        code="ZK020",
        key="performance.cuda_graph_impl",
        want=Equals(CudaGraphImpl.none),
        when=ZERO_KL,
        why="a captured training step was not measured; the recipe runs without graphs on both sides",
        source=RECIPE,
    ),
    Requirement(
        code="ZK021",
        key="performance.use_fused_linear_logprobs",
        want=Equals(False),
        when=ZERO_KL,
        why="it adds exponentials per block of the vocabulary; generation takes the log-softmax of a whole row",
        source=f"{RECIPE}; megatron-core 0.19.2 inference/contexts/dynamic_context.py",
    ),
    Requirement(
        code="ZK022",
        key="performance.deterministic_mode",
        want=Equals(False),
        when=ZERO_KL_GPU,
        why="its environment is CUBLAS_WORKSPACE_CONFIG=:4096:8, which gives cuBLAS the workspace for split-K back",
        source="megatron-core 0.19.2 megatron/training/determinism.py, DETERMINISM_ENV_VAR_DEFAULTS",
    ),
    Requirement(
        code="ZK023",
        key="performance.dynamic_batching.enabled",
        want=Equals(False),
        when=ZERO_KL,
        why="it pads rows to dynamic_batching.sequence_length_round in batches of changing shape; the recipe was "
        "proven with one shape",
        source=RECIPE,
    ),
    Requirement(
        code="ZK026",
        key="performance.use_mamba_mem_eff_path",
        want=Equals(False),
        when=SSM,
        why="the fused training scan of Mamba layers adds in another order than decode",
        source=RECIPE,
    ),
)

REQUIREMENTS: tuple[Requirement, ...] = SWITCH + PRECISION + ATTENTION + REST

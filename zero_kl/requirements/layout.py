"""The recipe's rows about parallel layouts of training and generation."""

from __future__ import annotations

from launcher.requirement import Between, Check, Condition, Equals, Finding, OneOf, Requirement, Subject, show
from zero_kl.conditions import (
    BATCH_INVARIANT,
    BLACKWELL,
    RECIPE,
    TRANSFORMER_CONFIG,
    ZERO_KL,
    ZERO_KL_BLACKWELL,
    ZERO_KL_TENSOR_PARALLEL,
)

MEASURED_LAYOUTS = "docs/measurements/2026-12-01-h200-layouts.md, docs/measurements/2026-11-30-cpu-layouts.md"

ZERO_KL_HERE = ZERO_KL & Condition(
    who="zero-KL", text="platform is hopper or cpu", test=lambda s: not BLACKWELL.test(s)
)
"""Where this project has measured layouts itself."""

MAX_EXPERT_PARALLEL = 8
"""Ranks of one NVLink-connected HGX node, as far as the published recipe goes."""


def _as_in_training(size: str) -> Check:
    """generation.SIZE is null or parallelism.SIZE; null can always be typed."""

    def test(subject: Subject) -> Finding | None:
        ours, training = subject.value(f"generation.{size}"), subject.value(f"parallelism.{size}")
        if ours is None or ours == training:
            return None
        return Finding(
            found=show(ours),
            wanted=f"null or parallelism.{size} ({show(training)})",
            hints=(f"generation.{size}=null",),
        )

    return Check(text=f"null or parallelism.{size}", test=test)


def _generation_size(code: str, *, size: str) -> Requirement:
    return Requirement(
        code=code,
        key=f"generation.{size}",
        want=_as_in_training(size),
        when=ZERO_KL,
        why="another layout for generation means a second model, and sums that are split over other ranks: trained at "
        "TP 2 and generated at TP 1, 13 of 20,480 tokens were equal",
        source=f"{RECIPE}; {MEASURED_LAYOUTS}",
        reads=(f"parallelism.{size}",),
    )


REQUIREMENTS: tuple[Requirement, ...] = (
    Requirement(
        code="ZK003",
        key="parallelism.tensor_model_parallel_size",
        want=Equals(1),
        when=ZERO_KL_BLACKWELL,
        why="the published recipe has no tensor parallelism; on Hopper sizes 2 and 4 are exact, with and without "
        "sequence parallelism",
        source=RECIPE,
    ),
    Requirement(
        code="ZK093",
        key="parallelism.tensor_model_parallel_size",
        want=OneOf((1, 2, 4)),
        when=ZERO_KL_HERE,
        why="more tensor-parallel ranks were not shown exact",
        source=MEASURED_LAYOUTS,
    ),
    Requirement(
        code="ZK094",
        key="zero_kl.batch_invariant_collective",
        want=Equals(True),
        when=ZERO_KL_TENSOR_PARALLEL,
        why="NCCL's ring adds a row's partial sums in an order that depends on its place in the message: at TP 4, 18 "
        "of 20,480 log-probabilities were equal with it and all in the order of the ranks. Two ranks have one order",
        source=MEASURED_LAYOUTS,
        reads=("parallelism.tensor_model_parallel_size",),
    ),
    Requirement(
        code="ZK004",
        key="parallelism.pipeline_model_parallel_size",
        want=Equals(1),
        when=ZERO_KL_BLACKWELL,
        why="the published recipe has one pipeline stage; on Hopper 2 are exact",
        source=RECIPE,
    ),
    Requirement(
        code="ZK095",
        key="parallelism.pipeline_model_parallel_size",
        want=OneOf((1, 2)),
        when=ZERO_KL_HERE,
        why="more stages were not shown exact",
        source=MEASURED_LAYOUTS,
    ),
    Requirement(
        code="ZK005",
        key="parallelism.context_parallel_size",
        want=Equals(1),
        when=BATCH_INVARIANT,
        why="context parallelism calls FlashAttention-2 directly, whose split count cannot be pinned",
        source=TRANSFORMER_CONFIG,
    ),
    Requirement(
        code="ZK006",
        key="parallelism.expert_tensor_parallel_size",
        want=OneOf((None, 1)),
        when=ZERO_KL,
        why="ranks that share an expert's matrices add partial sums, as with tensor parallelism",
        source=RECIPE,
    ),
    Requirement(
        code="ZK007",
        key="parallelism.expert_model_parallel_size",
        want=Between(high=MAX_EXPERT_PARALLEL),
        when=ZERO_KL,
        why="the recipe's expert ranks share one NVLink-connected node; more ranks were not shown exact",
        source=f"{RECIPE}; EP 2: {MEASURED_LAYOUTS}",
    ),
    Requirement(
        code="ZK008",
        key="parallelism.sequence_parallel",
        want=Equals(False),
        when=ZERO_KL_BLACKWELL,
        why="it splits rows over tensor-parallel ranks, and zero-KL has one on Blackwell; megatron-core refuses it "
        "without them",
        source="megatron-core 0.19.2 model_parallel_config.py, ModelParallelConfig.__post_init__ raises",
    ),
    _generation_size("ZK009", size="tensor_model_parallel_size"),
    _generation_size("ZK010", size="pipeline_model_parallel_size"),
    _generation_size("ZK011", size="expert_model_parallel_size"),
    _generation_size("ZK012", size="expert_tensor_parallel_size"),
)

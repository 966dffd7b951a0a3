"""The recipe's rows about parallel layouts of training and generation."""

from __future__ import annotations

from launcher.requirement import Between, Check, Equals, Finding, OneOf, Requirement, Subject, show
from zero_kl.conditions import BATCH_INVARIANT, RECIPE, TRANSFORMER_CONFIG, ZERO_KL

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
        why="another layout for generation means a second model, and sums that are split over other ranks",
        source=RECIPE,
        reads=(f"parallelism.{size}",),
    )


REQUIREMENTS: tuple[Requirement, ...] = (
    Requirement(
        code="ZK003",
        key="parallelism.tensor_model_parallel_size",
        want=Equals(1),
        when=ZERO_KL,
        why="an all-reduce adds partial sums in an order that depends on a row's place in the message: two ranks have "
        "one order and were exact (n = 8,192), but on 4 and 8 gloo ranks 48 and 56 of 64 rows changed with the batch",
        source=f"{RECIPE}; TP 2 measured on two H200s; docs/measurements/2026-11-30-cpu-layouts.md",
    ),
    Requirement(
        code="ZK004",
        key="parallelism.pipeline_model_parallel_size",
        want=Equals(1),
        when=ZERO_KL,
        why="training cuts its batch into micro-batches per stage and generation does not; no layout with stages was "
        "shown exact",
        source=RECIPE,
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
        source=f"{RECIPE}; EP 2 measured on two H200s (n = 8,192)",
    ),
    Requirement(
        code="ZK008",
        key="parallelism.sequence_parallel",
        want=Equals(False),
        when=ZERO_KL,
        why="it splits rows over tensor-parallel ranks, and zero-KL has one; megatron-core refuses it without them",
        source="megatron-core 0.19.2 model_parallel_config.py, ModelParallelConfig.__post_init__ raises",
    ),
    _generation_size("ZK009", size="tensor_model_parallel_size"),
    _generation_size("ZK010", size="pipeline_model_parallel_size"),
    _generation_size("ZK011", size="expert_model_parallel_size"),
    _generation_size("ZK012", size="expert_tensor_parallel_size"),
)

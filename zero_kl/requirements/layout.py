"""The recipe's rows about parallel layouts of training and generation."""

from __future__ import annotations

from launcher.requirement import Between, Check, Condition, Equals, Finding, OneOf, Requirement, Subject, show
from launcher.schema.layout import derive_layout
from zero_kl.conditions import (
    BATCH_INVARIANT,
    BLACKWELL,
    EXPERTS,
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

_SPLIT = (
    "a product split over other ranks is rounded elsewhere. Trained at TP 2 and generated at TP 1, 13 of 20,480 "
    "log-probabilities were equal"
)
_UNSEEN = "it was not shown exact"

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


def _whole_experts(subject: Subject) -> Finding | None:
    """What megatron-core makes of null counts: TP, where experts are not spread."""
    derived = derive_layout(subject.config).expert_tensor_parallel_size
    if derived == 1:
        return None
    typed = subject.config.parallelism.expert_tensor_parallel_size
    return Finding(
        found=show(typed) if typed is not None else f"null (derived as {derived})",
        wanted="1",
        hints=("parallelism.expert_tensor_parallel_size=1",),
    )


_PASS_BY = ("symmetric_ar_type", "tp_comm_overlap", "use_transformer_engine_op_fuser")
"""Fields of upstream's that give a layer's sum over ranks to other code than what is put in order here."""


def _not_passed_by(subject: Subject) -> Finding | None:
    found = [name for name in _PASS_BY if subject.config.model.model_overrides.get(name)]
    if not found:
        return None
    return Finding(
        found=", ".join(found),
        wanted=f"no {' or '.join(_PASS_BY)}",
        hints=tuple(f"~model.model_overrides.{name}" for name in found),
    )


def _generation_size(code: str, *, size: str, why: str) -> Requirement:
    return Requirement(
        code=code,
        key=f"generation.{size}",
        want=_as_in_training(size),
        when=ZERO_KL,
        why=f"another layout for generation means a second model: {why}",
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
        "of 20,480 log-probabilities were equal with it, and all in the order of the ranks. TP 2 has one order anyhow, "
        "and keeps to the same code",
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
        want=Check(text="1, or null where that is derived as 1", test=_whole_experts),
        when=EXPERTS,
        why="ranks that share an expert's matrices add partial sums in megatron-core's dispatcher; no GPU has shown it "
        "exact",
        source=RECIPE,
        reads=("parallelism.tensor_model_parallel_size", "parallelism.expert_model_parallel_size"),
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
    Requirement(
        code="ZK097",
        key="model.model_overrides",
        want=Check(text=f"no {' or '.join(_PASS_BY)}", test=_not_passed_by),
        when=ZERO_KL_TENSOR_PARALLEL,
        why="a layer's sum over ranks would be made by code that no one put in order",
        source="transformer-engine 2.20.2 pytorch/module/linear.py; megatron-core 0.19.2 model_parallel_config.py",
        reads=("parallelism.tensor_model_parallel_size",),
    ),
    _generation_size("ZK009", size="tensor_model_parallel_size", why=_SPLIT),
    _generation_size("ZK010", size="pipeline_model_parallel_size", why=_UNSEEN),
    _generation_size("ZK011", size="expert_model_parallel_size", why=_UNSEEN),
    _generation_size("ZK012", size="expert_tensor_parallel_size", why=_UNSEEN),
)

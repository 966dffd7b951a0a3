"""Rules about recompute and fine-grained offloading of activations, and which modules they may name.

The fields themselves are forwarded by `megatron_setup.performance`. Torch-free.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from launcher.requirement import Between, Check, Condition, Finding, OneOf, Requirement, Subject, show
from launcher.schema import RunConfig
from launcher.schema.performance import (
    OffloadModule,
    RecomputeGranularity,
    RecomputeMethod,
    RecomputeModule,
    TransformerImpl,
)
from launcher.schema.precision import Fp8Recipe
from megatron_setup.precision import fp8_recipe
from megatron_setup.rows import SwitchedOff, is_dense, unread, where

_CONFIG = "megatron-core 0.19.2 transformer/transformer_config.py"
_BRIDGE = "megatron-bridge 0.6.2 training/config.py, _validate_fine_grained_activation_offloading"
_RECOMPUTED = "performance.recompute_modules"
_OFFLOADED = "performance.offload_modules"
_OFFLOADING = "performance.fine_grained_activation_offloading"

OFFLOADING_READS: Mapping[str, Any] = {
    _OFFLOADED: None,
    "performance.min_offloaded_tensor_size": None,
    "performance.activation_offload_fraction": None,
}
"""Read only where activations are offloaded; with their values when off."""

_EXPERT_RECOMPUTE = (RecomputeModule.moe, RecomputeModule.moe_act, RecomputeModule.shared_experts)
_EXPERT_OFFLOAD = (OffloadModule.expert_fc1, OffloadModule.moe_act, OffloadModule.fused_group_mlp)


def _typed(modules: Sequence[Enum]) -> str:
    """A list of modules as an override holds it; an empty one is null, which is upstream's choice."""
    return f"[{','.join(module.value for module in modules)}]" if modules else "null"


def _without(key: str, *, modules: Sequence[Enum]) -> Check:
    """The list at `key` names none of these; the hint is what remains of it."""

    def test(subject: Subject) -> Finding | None:
        found: list[Enum] = subject.value(key) or []
        rest = [module for module in found if module not in modules]
        if len(rest) == len(found):
            return None
        return Finding(found=_typed(found), wanted=text, hints=(f"{key}={_typed(rest)}",))

    text = f"none of {', '.join(module.value for module in modules)}"
    return Check(text, test)


def _has_layers(subject: Subject) -> Finding | None:
    found = subject.config.performance.recompute_num_layers
    if found is not None and found >= 1:
        return None
    return Finding(found=show(found), wanted="at least 1", hints=("performance.recompute_num_layers=1",))


def _names_a_module(subject: Subject) -> Finding | None:
    if subject.config.performance.offload_modules:
        return None
    return Finding(found="empty", wanted="a module", hints=(f"{_OFFLOADED}=[core_attn]",))


def _core_with_projection(subject: Subject) -> Finding | None:
    found = subject.config.performance.offload_modules or []
    if OffloadModule.attn_proj not in found or OffloadModule.core_attn in found:
        return None
    return Finding(
        found=_typed(found),
        wanted="core_attn beside attn_proj",
        hints=(f"{_OFFLOADED}={_typed([OffloadModule.core_attn, *found])}",),
    )


def _recomputes(config: RunConfig, *, module: RecomputeModule) -> bool:
    performance = config.performance
    selective = performance.recompute_granularity is RecomputeGranularity.selective
    return selective and module in (performance.recompute_modules or [])


_MCORE = "megatron-core"
FULL = where(
    _MCORE,
    text="recompute_granularity is full",
    test=lambda c: c.performance.recompute_granularity is RecomputeGranularity.full,
)
NOT_FULL = where(
    _MCORE,
    text="recompute_granularity is not full",
    test=lambda c: c.performance.recompute_granularity is not RecomputeGranularity.full,
)
NOT_SELECTIVE = where(
    _MCORE,
    text="recompute_granularity is not selective",
    test=lambda c: c.performance.recompute_granularity is not RecomputeGranularity.selective,
)
DENSE = Condition(who="a dense model", text="the model is dense", test=is_dense)
SEPARATE_EXPERTS = where(_MCORE, text="moe_grouped_gemm is false", test=lambda c: c.moe.moe_grouped_gemm is False)
DELAYED = where(
    _MCORE,
    text="precision.fp8 is set and the recipe is delayed",
    test=lambda c: c.precision.fp8 is not None and fp8_recipe(c.precision) is Fp8Recipe.delayed,
)
SHARED_OVERLAP = where(_MCORE, text="moe_shared_expert_overlap is true", test=lambda c: c.moe.moe_shared_expert_overlap)
OFFLOADING = where(
    _MCORE,
    text="fine_grained_activation_offloading is true",
    test=lambda c: c.performance.fine_grained_activation_offloading,
)
NOT_OFFLOADING = where(
    _MCORE,
    text="fine_grained_activation_offloading is false",
    test=lambda c: not c.performance.fine_grained_activation_offloading,
)
OTHER_LAYERS = where(
    "Megatron-Bridge",
    text="transformer_impl is not transformer_engine",
    test=lambda c: c.performance.transformer_impl is not TransformerImpl.transformer_engine,
)
RECOMPUTED_MOE = where(
    _MCORE,
    text="selective recompute takes moe",
    test=lambda c: _recomputes(c, module=RecomputeModule.moe),
)
NO_FUSER = where(
    _MCORE,
    text="model.model_overrides does not set use_transformer_engine_op_fuser",
    test=lambda c: c.model.model_overrides.get("use_transformer_engine_op_fuser") is not True,
)

RECOMPUTE_ROWS: tuple[Requirement, ...] = (
    Requirement(
        code="PE030",
        key="performance.recompute_method",
        want=OneOf((RecomputeMethod.uniform, RecomputeMethod.block)),
        when=FULL,
        why="full recompute must be told which layers it takes",
        source=_CONFIG,
        reads=("performance.recompute_granularity",),
    ),
    Requirement(
        code="PE031",
        key="performance.recompute_num_layers",
        want=Check("at least 1", _has_layers),
        when=FULL,
        why="full recompute must be told how many layers go together",
        source=_CONFIG,
        reads=("performance.recompute_granularity",),
    ),
    *unread(
        {"PE032": "performance.recompute_method", "PE033": "performance.recompute_num_layers"},
        when=NOT_FULL,
        why="only full recompute reads it; megatron-core refuses a number of layers beside selective recompute",
        source=_CONFIG,
        reads=("performance.recompute_granularity",),
    ),
    *unread(
        {"PE034": _RECOMPUTED},
        when=NOT_SELECTIVE,
        why="only selective recompute reads it",
        source=_CONFIG,
        reads=("performance.recompute_granularity",),
    ),
    *(
        Requirement(
            code=code,
            key=_RECOMPUTED,
            want=_without(_RECOMPUTED, modules=modules),
            when=when,
            why=why,
            source=_CONFIG,
            reads=reads,
        )
        for code, modules, when, why, reads in (
            ("PE035", _EXPERT_RECOMPUTE, DENSE, "a dense model has no experts", ()),
            (
                "PE036",
                (RecomputeModule.moe_act,),
                SEPARATE_EXPERTS,
                "only the grouped GEMM gives up its activations one by one",
                ("moe.moe_grouped_gemm",),
            ),
            (
                "PE037",
                (RecomputeModule.moe_act, RecomputeModule.layernorm),
                DELAYED,
                "delayed scaling does not support recomputing them",
                ("precision.fp8", "precision.fp8_recipe"),
            ),
            (
                "PE038",
                (RecomputeModule.shared_experts,),
                SHARED_OVERLAP,
                "the overlapped shared expert runs inside the dispatcher, where nothing is recomputed",
                ("moe.moe_shared_expert_overlap",),
            ),
        )
    ),
)

OFFLOAD_ROWS: tuple[Requirement, ...] = (
    Requirement(
        code="PE050",
        key=_OFFLOADING,
        want=SwitchedOff((False,), followers=OFFLOADING_READS),
        when=OTHER_LAYERS,
        why="only Transformer Engine's layers mark what can be offloaded",
        source=_BRIDGE,
        reads=("performance.transformer_impl",),
    ),
    Requirement(
        code="PE051",
        key=_OFFLOADED,
        want=Check("at least one module", _names_a_module),
        when=OFFLOADING,
        why="offloading must be told whose inputs it takes",
        source=_CONFIG,
        reads=(_OFFLOADING,),
    ),
    *unread(
        dict(zip(("PE052", "PE053", "PE054"), OFFLOADING_READS, strict=True)),
        when=NOT_OFFLOADING,
        why="only fine-grained offloading reads it",
        source=_CONFIG,
        reads=(_OFFLOADING,),
    ),
    Requirement(
        code="PE055",
        key="performance.min_offloaded_tensor_size",
        want=Between(low=0),
        why="it is a number of elements",
        source=_CONFIG,
    ),
    Requirement(
        code="PE056",
        key="performance.activation_offload_fraction",
        want=Between(low=0.0, high=1.0),
        why="it is a share",
        source=_CONFIG,
    ),
    Requirement(
        code="PE057",
        key=_OFFLOADED,
        want=Check("core_attn beside attn_proj", _core_with_projection),
        why="the input of attn_proj is the output of core_attn, which core_attn's backward pass needs",
        source=_CONFIG,
    ),
    *(
        Requirement(
            code=code,
            key=_OFFLOADED,
            want=_without(_OFFLOADED, modules=modules),
            when=when,
            why=why,
            source=_CONFIG,
            reads=reads,
        )
        for code, modules, when, why, reads in (
            ("PE058", _EXPERT_OFFLOAD, DENSE, "a dense model has no experts", ()),
            (
                "PE059",
                _EXPERT_OFFLOAD,
                RECOMPUTED_MOE,
                "the whole MoE layer is recomputed: nothing of it is kept, and offloading it fails",
                ("performance.recompute_granularity", _RECOMPUTED),
            ),
            (
                "PE060",
                (OffloadModule.fused_group_mlp,),
                NO_FUSER,
                "Transformer Engine's operator fuser makes it, which is off",
                ("model.model_overrides",),
            ),
        )
    ),
)

ROWS: tuple[Requirement, ...] = RECOMPUTE_ROWS + OFFLOAD_ROWS

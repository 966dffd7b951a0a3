"""LoRA's settings. Owns the arguments of Bridge's LoRA and the rules about them. Torch-free."""

from __future__ import annotations

import math
from typing import Any

from launcher.requirement import Between, Check, Condition, Equals, Finding, Requirement, Severity, Subject, show
from launcher.schema import PlatformKind, RunConfig
from launcher.schema.layout import derive_expert_tensor_parallel_size
from launcher.schema.model import AdapterInit, DropoutPosition, PeftConfig
from launcher.schema.performance import RecomputeGranularity, RecomputeModule
from megatron_setup.rows import has_experts, where

_LORA = "megatron-bridge 0.6.2 peft/lora.py"
_MATCHER = "megatron-bridge 0.6.2 peft/module_matcher.py, match"
_ADAPTER = "megatron-bridge 0.6.2 peft/utils.py, ParallelLinearAdapter"
_TARGETS = "model.peft.target_modules"
_EXCLUDED = "model.peft.exclude_modules"
_A2A = "model.peft.a2a_experimental"
_RECOMPUTED = "performance.recompute_modules"


def lora_fields(config: RunConfig) -> dict[str, Any]:
    """Arguments of `megatron.bridge.peft.lora.LoRA`, in its spelling; enums are ours. LO011 keeps lora_dtype null."""
    return {name: value for name, value in vars(config.model.peft).items() if name not in ("enabled", "lora_dtype")}


def _set_for_nothing(subject: Subject) -> Finding | None:
    """The keys that are not at their defaults."""
    found, plain = subject.config.model.peft, PeftConfig()
    idle = {name: value for name, value in vars(plain).items() if getattr(found, name) != value}
    if not idle:
        return None
    return Finding(
        found=f"set ({', '.join(idle)})",
        wanted="nothing, or model.peft.enabled=true",
        hints=tuple(f"model.peft.{name}={show(value)}" for name, value in idle.items()),
    )


def _one_kind_of_list(subject: Subject) -> Finding | None:
    peft = subject.config.model.peft
    if not (peft.exclude_modules and peft.target_modules):
        return None
    return Finding(
        found=show(peft.exclude_modules),
        wanted=f"it empty beside target_modules {show(peft.target_modules)}, or that list empty",
        hints=(f"{_TARGETS}=[]",),
    )


def _below_one(subject: Subject) -> Finding | None:
    found = subject.config.model.peft.dropout
    if 0.0 <= found < 1.0:
        return None
    return Finding(found=show(found), wanted="at least 0.0 and below 1.0", hints=("model.peft.dropout=0.0",))


def _one_factor_moves(subject: Subject) -> Finding | None:
    peft = subject.config.model.peft
    if (peft.lora_A_init_method, peft.lora_B_init_method) != (AdapterInit.zero, AdapterInit.zero):
        return None
    return Finding(
        found="zero",
        wanted="another one beside lora_B_init_method zero",
        hints=("model.peft.lora_A_init_method=xavier",),
    )


def _last(pattern: str) -> str:
    """The module's own name: `*.layers.0.*.linear_qkv` is about linear_qkv."""
    return pattern.rpartition(".")[2]


def _rank_splits(subject: Subject) -> Finding | None:
    """Only the first matrix beside a column-parallel linear is split over the ranks of its rows, which are `dim`."""
    peft, parallelism = subject.config.model.peft, subject.config.parallelism
    row_parallel = ("linear_proj", "linear_fc2")
    if peft.target_modules and all(_last(name) in row_parallel for name in peft.target_modules):
        return None
    sizes = {"tensor_model_parallel_size": parallelism.tensor_model_parallel_size}
    if has_experts(subject):
        sizes["expert_tensor_parallel_size"] = derive_expert_tensor_parallel_size(parallelism)
    group = math.lcm(*(max(size, 1) for size in sizes.values()))
    if peft.dim % group == 0:
        return None
    return Finding(
        found=show(peft.dim),
        wanted=f"a multiple of {group}",
        arithmetic=", ".join(f"{name} {size}" for name, size in sizes.items()),
        hints=(f"model.peft.dim={-(-max(peft.dim, 1) // group) * group}",),
    )


def _spares_the_output_layer(subject: Subject) -> Finding | None:
    peft = subject.config.model.peft
    named = [name for name in peft.target_modules if _last(name) == "output_layer"]
    if named:
        rest = [name for name in peft.target_modules if name not in named]
        return Finding(found=show(peft.target_modules), wanted="no output_layer", hints=(f"{_TARGETS}={show(rest)}",))
    if peft.target_modules or any(_last(name) == "output_layer" for name in peft.exclude_modules):
        return None
    excluded = [*peft.exclude_modules, "output_layer"]
    return Finding(
        found="[]",
        wanted="output_layer in exclude_modules, since every other linear gets an adapter",
        hints=(f"{_EXCLUDED}={show(excluded)}",),
    )


def _adapts_no_router(subject: Subject) -> Finding | None:
    found = subject.config.model.peft.target_modules
    rest = [name for name in found if _last(name) != "router"]
    if rest == found:
        return None
    return Finding(found=show(found), wanted="no router", hints=("moe.freeze_moe_router=false",))


def _recomputes_what_has_an_input_gradient(subject: Subject) -> Finding | None:
    """Targets of the MLP alone, and the MLP recomputed."""
    targets, found = subject.config.model.peft.target_modules, subject.config.performance.recompute_modules or []
    if not targets or any(_last(name) not in ("linear_fc1", "linear_fc2") for name in targets):
        return None
    rest = [module for module in found if module not in (RecomputeModule.mlp, RecomputeModule.moe)]
    if rest == found:
        return None
    return Finding(
        found=show(found),
        wanted="neither mlp nor moe beside adapters in the MLP alone",
        hints=(f"{_RECOMPUTED}={show(rest or [RecomputeModule.core_attn])}",),
    )


_WHO = "LoRA"
OFF = where(_WHO, text="model.peft.enabled is false", test=lambda c: not c.model.peft.enabled)
ON = where(_WHO, text="model.peft.enabled is true", test=lambda c: c.model.peft.enabled)
NO_DROPOUT = ON & where("", text="dropout is 0", test=lambda c: c.model.peft.dropout == 0.0)
WHOLE_SEQUENCES = ON & where("", text="sequence_parallel is false", test=lambda c: not c.parallelism.sequence_parallel)
GLOO = ON & where("", text="platform.kind is cpu", test=lambda c: c.platform.kind is PlatformKind.cpu)
SPLIT = ON & where(
    "", text="tensor_model_parallel_size is above 1", test=lambda c: c.parallelism.tensor_model_parallel_size > 1
)
FROZEN_ROUTER = ON & where("", text="moe.freeze_moe_router is true", test=lambda c: c.moe.freeze_moe_router)
SPLIT_EXPERTS = ON & Condition(
    who="",
    text="experts are split over tensor-parallel ranks",
    test=lambda s: has_experts(s) and derive_expert_tensor_parallel_size(s.config.parallelism) > 1,
)
SELECTIVE = ON & where(
    "",
    text="recompute_granularity is selective",
    test=lambda c: c.performance.recompute_granularity is RecomputeGranularity.selective,
)

NAME_ROWS: tuple[Requirement, ...] = (
    Requirement(
        code="LO001",
        key="model.peft",
        want=Check("nothing set", _set_for_nothing),
        when=OFF,
        severity=Severity.WARNING,
        why="without LoRA nothing reads it",
        source="megatron_setup/lora.py",
    ),
    Requirement(
        code="LO002",
        key=_EXCLUDED,
        want=Check("empty beside target_modules", _one_kind_of_list),
        when=ON,
        why="one list says which linears get an adapter, the other which do not: Bridge asserts that one is empty",
        source=_MATCHER,
        reads=(_TARGETS,),
    ),
    Requirement(
        code="LO003",
        key=_TARGETS,
        want=Check("an output layer without an adapter", _spares_the_output_layer),
        when=SPLIT,
        why="generation gathers the logits of all ranks in the output layer, the adapter's stay split: the sum fails",
        source="megatron-bridge 0.6.2 peft/lora_layers.py, LoRALinear.forward",
        reads=(_EXCLUDED, "parallelism.tensor_model_parallel_size"),
    ),
    Requirement(
        code="LO004",
        key=_TARGETS,
        want=Check("no router", _adapts_no_router),
        when=FROZEN_ROUTER,
        why="an adapter changes the router's choices although it was to be frozen",
        source=f"{_LORA}, LoRATopKRouter",
        reads=("moe.freeze_moe_router",),
    ),
    Requirement(
        code="LO005",
        key=_RECOMPUTED,
        want=Check("nothing that has all of the adapters", _recomputes_what_has_an_input_gradient),
        when=SELECTIVE,
        why="nothing before the first adapter has a gradient, and a recomputed module whose input has none gets none "
        "either: its adapters would never train. Bridge mends this for full recompute only",
        source="megatron-bridge 0.6.2 peft/recompute.py, maybe_enable_recompute_inputs_grad",
        reads=(_TARGETS, "performance.recompute_granularity"),
    ),
)

SIZE_ROWS: tuple[Requirement, ...] = (
    *(
        Requirement(code=code, key=key, want=Between(low=1), when=ON, why=why, source=_ADAPTER)
        for code, key, why in (
            ("LO006", "model.peft.dim", "it is the rank of the adapters, and alpha is divided by it"),
            ("LO007", "model.peft.alpha", "the adapters' output is multiplied by alpha / dim: 0 would train nothing"),
        )
    ),
    Requirement(
        code="LO008",
        key="model.peft.dropout",
        want=Check("at least 0 and below 1", _below_one),
        when=ON,
        why="Bridge takes a negative one for off, and 1 drops everything",
        source=_ADAPTER,
    ),
    Requirement(
        code="LO009",
        key="model.peft.dropout_position",
        want=Equals(DropoutPosition.pre),
        when=NO_DROPOUT,
        why="without dropout nothing reads it",
        source=_ADAPTER,
        reads=("model.peft.dropout",),
    ),
    Requirement(
        code="LO010",
        key="model.peft.lora_A_init_method",
        want=Check("not zero beside a zero lora_B_init_method", _one_factor_moves),
        when=ON,
        why="the gradient of each matrix is a product with the other: from two zeros nothing ever moves",
        source=_ADAPTER,
        reads=("model.peft.lora_B_init_method",),
    ),
    Requirement(
        code="LO011",
        key="model.peft.lora_dtype",
        want=Equals(None),
        why="Bridge hands it to plain torch linears only; adapters of Megatron's linears have the model's format",
        source=f"{_LORA}, transform",
    ),
    Requirement(
        code="LO012",
        key="model.peft.dim",
        want=Check("a multiple of the tensor-parallel sizes", _rank_splits),
        when=ON,
        why="the first matrix is split over the tensor-parallel ranks by its rows",
        source=_ADAPTER,
        reads=(
            _TARGETS,
            "parallelism.tensor_model_parallel_size",
            "parallelism.expert_tensor_parallel_size",
            "parallelism.expert_model_parallel_size",
        ),
    ),
)

A2A_ROWS: tuple[Requirement, ...] = tuple(
    Requirement(code=code, key=_A2A, want=Equals(False), when=when, why=why, source=_ADAPTER, reads=reads)
    for code, when, why, reads in (
        (
            "LO013",
            WHOLE_SEQUENCES,
            "it exchanges parts of sequences, which only sequence parallelism makes; otherwise nothing reads it",
            ("parallelism.sequence_parallel",),
        ),
        ("LO014", GLOO, "gloo has no all-to-all of lists", ("platform.kind",)),
        (
            "LO015",
            SPLIT_EXPERTS,
            "an expert's adapter then returns a part of the hidden size, which Bridge neither gathers nor exchanges",
            ("parallelism.expert_tensor_parallel_size", "parallelism.expert_model_parallel_size"),
        ),
    )
)

REQUIREMENTS: tuple[Requirement, ...] = NAME_ROWS + SIZE_ROWS + A2A_ROWS

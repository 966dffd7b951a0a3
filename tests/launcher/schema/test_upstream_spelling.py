"""A field that upstream has is spelt as upstream spells it, and a choice offers exactly upstream's values.

Upstream's sources are read, not imported: importing Megatron takes half a minute.
"""

import ast
import re
from dataclasses import fields
from enum import Enum
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from launcher.schema import (
    CheckpointConfig,
    GenerationConfig,
    MoeConfig,
    MtpConfig,
    OptimizerConfig,
    ParallelismConfig,
    PerformanceConfig,
    PrecisionConfig,
    model,
    moe,
    optimizer,
    performance,
    precision,
)
from launcher.schema import checkpoint as ckpt
from launcher.schema import generation as gen

PARALLEL = "core/model_parallel_config.py:ModelParallelConfig"
TRANSFORMER = "core/transformer/transformer_config.py:TransformerConfig"
OPTIMIZER = "core/optimizer/optimizer_config.py:OptimizerConfig"
DDP = "core/distributed/distributed_data_parallel_config.py:DistributedDataParallelConfig"
INFERENCE = "core/inference/config.py:InferenceConfig"
SAMPLING = "core/inference/sampling_params.py:SamplingParams"
SCHEDULER = "training/config/training_config.py:SchedulerConfig"
TRAINING = "training/config/training_config.py:TrainingConfig"
CHECKPOINT = "training/config/training_config.py:CheckpointConfig"
BRIDGE_CHECKPOINT = "bridge/training/config.py:CheckpointConfig"
LORA = "bridge/peft/lora.py:LoRA"
MATCHER = "bridge/peft/module_matcher.py:ModuleMatcher"
REFIT = "core/resharding/refit.py"

SPELLING = [
    (ParallelismConfig, (PARALLEL, TRANSFORMER), {"data_parallel_size"}),
    (
        MoeConfig,
        (PARALLEL, TRANSFORMER),
        {"freeze_moe_router", "num_of_hybrid_ep_ranks_per_nvlink_domain", "use_mnnvl"},
    ),
    (MtpConfig, (TRANSFORMER,), set[str]()),
    (PrecisionConfig, (PARALLEL, TRANSFORMER), {"dtype"}),
    (
        PerformanceConfig,
        (PARALLEL, TRANSFORMER, TRAINING),
        {
            "make_sequence_length_divisible_by",
            "sequence_packing",
            "dynamic_batching",
            "logprob_chunk_size",
            "defer_fp32_logits",
            "use_fused_linear_logprobs",
        },
    ),
    (OptimizerConfig, (OPTIMIZER, TRANSFORMER), {"scheduler", "ddp"}),
    (optimizer.SchedulerConfig, (SCHEDULER,), set[str]()),
    (optimizer.DdpConfig, (DDP,), set[str]()),
    (CheckpointConfig, (CHECKPOINT, BRIDGE_CHECKPOINT), set[str]()),
    (
        GenerationConfig,
        (PARALLEL, TRANSFORMER, INFERENCE, SAMPLING),
        {"backend", "colocated", "max_new_tokens", "refit_method", "mamba_inference_ssm_states_dtype"},
    ),
    (model.PeftConfig, (LORA, MATCHER), {"enabled"}),
]

CHOICES: list[tuple[type[Enum], str, set[str]]] = [
    (moe.TokenDispatcher, f"{TRANSFORMER}.moe_token_dispatcher_type", set()),
    (moe.FlexDispatcherBackend, f"{TRANSFORMER}.moe_flex_dispatcher_backend", set()),
    (precision.Fp8Format, f"{TRANSFORMER}.fp8", set()),
    (precision.Fp8Recipe, f"{TRANSFORMER}.fp8_recipe", {"custom"}),
    (precision.AmaxAlgorithm, f"{TRANSFORMER}.fp8_amax_compute_algo", set()),
    (performance.AttentionBackend, "core/transformer/enums.py:AttnBackend", set()),
    (performance.TransformerImpl, f"{TRANSFORMER}.transformer_impl", set()),
    (performance.RecomputeGranularity, f"{TRANSFORMER}.recompute_granularity", set()),
    (performance.RecomputeMethod, f"{TRANSFORMER}.recompute_method", set()),
    (performance.CrossEntropyFusion, f"{PARALLEL}.cross_entropy_fusion_impl", set()),
    (performance.CudaGraphImpl, f"{TRANSFORMER}.cuda_graph_impl", set()),
    (performance.CudaGraphModule, "core/transformer/enums.py:CudaGraphModule", set()),
    (optimizer.LrDecayStyle, f"{SCHEDULER}.lr_decay_style", {"inverse-square-root"}),
    (optimizer.WsdDecayStyle, f"{SCHEDULER}.lr_wsd_decay_style", set()),
    (optimizer.WeightDecayStyle, f"{SCHEDULER}.weight_decay_incr_style", set()),
    (ckpt.AsyncStrategy, f"{CHECKPOINT}.async_strategy", set()),
    (ckpt.ParallelGroup, f"{CHECKPOINT}.ckpt_fully_parallel_save_process_group", set()),
    (ckpt.ParallelGroup, f"{CHECKPOINT}.ckpt_fully_parallel_load_process_group", set()),
    (ckpt.ExchangeAlgorithm, f"{CHECKPOINT}.ckpt_fully_parallel_load_exchange_algo", set()),
    (ckpt.Strictness, f"{CHECKPOINT}.dist_ckpt_strictness", set()),
    (gen.LogprobsMode, f"{INFERENCE}.logprobs_mode", set()),
    (gen.KvCacheManagementMode, "core/inference/config.py:KVCacheManagementMode", set()),
    (gen.InferenceCudaGraphScope, "core/transformer/enums.py:InferenceCudaGraphScope", set()),
    (gen.RefitMethod, f"{REFIT}:RefitBackendName", set()),
    (model.DropoutPosition, f"{LORA}.dropout_position", set()),
]

ENUMS = sorted({enum for enum, _, _ in CHOICES}, key=lambda enum: enum.__name__)

MODULE_LISTS = [
    (performance.RecomputeModule, "recompute_modules"),
    (performance.OffloadModule, "offload_modules"),
]
"""Upstream has these only as a set inside `__post_init__`."""


@cache
def upstream_tree(file: str) -> ast.Module:
    spec = find_spec("megatron.core")
    assert spec is not None and spec.origin is not None, "the extra `megatron` is not installed"
    return ast.parse((Path(spec.origin).parents[1] / file).read_text())


def upstream_class(where: str) -> ast.ClassDef:
    file, _, name = where.partition(":")
    return next(n for n in upstream_tree(file).body if isinstance(n, ast.ClassDef) and n.name == name)


def upstream_fields(where: str) -> dict[str, ast.expr]:
    body = upstream_class(where).body
    return {n.target.id: n.annotation for n in body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}


def strings_in(node: ast.AST) -> set[str]:
    return {n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)}


def upstream_choices(where: str) -> set[str]:
    """The strings of a field's or a name's Literal, or the members of an enum (values where they are strings)."""
    file, _, name = where.partition(":")
    if "." in name:
        cls, _, field = name.partition(".")
        return strings_in(upstream_fields(f"{file}:{cls}")[field])
    for node in upstream_tree(file).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return strings_in(node.value)
    members = [n for n in upstream_class(where).body if isinstance(n, ast.Assign)]
    values = [ast.literal_eval(m.value) for m in members]
    names = [ast.unparse(m.targets[0]) for m in members]
    return {v if isinstance(v, str) else n for n, v in zip(names, values, strict=True)}


@pytest.mark.parametrize(("cls", "upstream", "ours"), SPELLING, ids=lambda v: getattr(v, "__name__", None))
def test_fields_are_spelt_as_upstream_spells_them(cls: type, upstream: tuple[str, ...], ours: set[str]) -> None:
    known = {name for where in upstream for name in upstream_fields(where)}
    assert {field.name for field in fields(cls)} - known == ours


@pytest.mark.parametrize(("enum", "where", "left_out"), CHOICES, ids=lambda v: getattr(v, "__name__", None))
def test_choices_are_upstreams(enum: type[Enum], where: str, left_out: set[str]) -> None:
    assert {member.value for member in enum} | left_out == upstream_choices(where)


@pytest.mark.parametrize(("enum", "field"), MODULE_LISTS)
def test_module_names_are_upstreams(enum: type[Enum], field: str) -> None:
    checks = [n for n in ast.walk(upstream_class(TRANSFORMER)) if isinstance(n, ast.If) and field in ast.unparse(n)]
    allowed = [
        strings_in(n.value)
        for check in checks
        for n in ast.walk(check)
        if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "allowed_modules"
    ]
    assert {member.value for member in enum} in allowed


def test_load_balancing_is_upstreams() -> None:
    """Upstream types this field as a string and lists the values in its docstring."""
    body = upstream_class(TRANSFORMER).body
    (place,) = [i for i, n in enumerate(body) if ast.unparse(n).startswith("moe_router_load_balancing_type:")]
    listed = set(re.findall(r'- "(\w+)":', ast.unparse(body[place + 1])))
    assert {member.value for member in moe.LoadBalancing} == listed


@pytest.mark.parametrize("enum", ENUMS)
def test_a_choice_is_typed_as_it_is_spelt(enum: type[Enum]) -> None:
    """OmegaConf reads a member by its name and we print its value; a hint must be typeable."""
    assert [member.name for member in enum] == [member.value for member in enum]

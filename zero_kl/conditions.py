"""When a row of the recipe applies, and where a row was read. No rows here."""

from __future__ import annotations

from launcher.requirement import Condition, Subject
from launcher.schema import PlatformKind
from zero_kl.architectures import SSM_MODEL_TYPES

RECIPE = "recipe of NeMo-RL's zero_train_gen_mismatch (te-colocated, Blackwell)"
"""The system this one re-thinks. Its rows are checked as published; not each was taken apart here."""

TRANSFORMER_CONFIG = (
    "megatron-core 0.19.2 transformer/transformer_config.py, TransformerConfig.__post_init__ asserts it"
)

MEASURED = (
    "one H200, 30 November 2026: torch 2.11.0+cu130, megatron-core 0.19.2, megatron-bridge 0.6.2, "
    "transformer-engine 2.20.2, flash-attn-4 4.0.0b29"
)
"""The one set of versions and the GPU behind every figure that a row quotes."""


def on_gpu(subject: Subject) -> bool:
    """The platform is a GPU's."""
    return subject.config.platform.kind is not PlatformKind.cpu


def is_required(subject: Subject) -> bool:
    """The run must come out at zero."""
    return subject.config.zero_kl.required


def _may_have_experts(subject: Subject) -> bool:
    return subject.architecture is None or subject.architecture.num_moe_experts is not None


def _may_have_ssm_layers(subject: Subject) -> bool:
    return subject.architecture is None or subject.architecture.model_type in SSM_MODEL_TYPES


ZERO_KL = Condition(who="zero-KL", text="zero_kl.required", test=is_required)

GPU = Condition(who="a GPU", text="platform is not cpu", test=on_gpu)
CPU = Condition(who="the CPU platform", text="platform is cpu", test=lambda s: not on_gpu(s))
HOPPER = Condition(
    who="zero-KL", text="platform is hopper", test=lambda s: s.config.platform.kind is PlatformKind.hopper
)

BLACKWELL = Condition(
    who="zero-KL", text="platform is blackwell", test=lambda s: s.config.platform.kind is PlatformKind.blackwell
)

ZERO_KL_GPU = ZERO_KL & GPU
ZERO_KL_CPU = ZERO_KL & CPU
ZERO_KL_HOPPER = ZERO_KL & HOPPER
ZERO_KL_BLACKWELL = ZERO_KL & BLACKWELL

ORDINARY = Condition(who="an ordinary run", text="not zero_kl.required", test=lambda s: not is_required(s))

BATCH_INVARIANT = Condition(
    who="batch-invariant mode",
    text="zero_kl.batch_invariant_mode or zero_kl.required, and platform is not cpu",
    test=lambda s: on_gpu(s) and (is_required(s) or s.config.zero_kl.batch_invariant_mode),
)

ZERO_KL_TENSOR_PARALLEL = ZERO_KL & Condition(
    who="tensor parallelism",
    text="parallelism.tensor_model_parallel_size > 1",
    test=lambda s: s.config.parallelism.tensor_model_parallel_size > 1,
)

ZERO_KL_MODEL_PARALLEL = ZERO_KL & Condition(
    who="tensor or pipeline parallelism",
    text="parallelism.tensor_model_parallel_size or pipeline_model_parallel_size > 1",
    test=lambda s: (
        max(s.config.parallelism.tensor_model_parallel_size, s.config.parallelism.pipeline_model_parallel_size) > 1
    ),
)

EXPERTS = ZERO_KL & Condition(
    who="zero-KL", text="the model has experts or its shape is not known", test=_may_have_experts
)

SSM = ZERO_KL_GPU & Condition(
    who="zero-KL", text="the model has Mamba layers or its shape is not known", test=_may_have_ssm_layers
)

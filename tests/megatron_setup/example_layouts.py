"""Small shapes and the plainest run configuration, for tests that change a few keys of it."""

from typing import Any

from launcher.requirement import Subject
from launcher.schema import (
    Architecture,
    CheckpointConfig,
    ClusterConfig,
    GenerationConfig,
    JobConfig,
    JobKind,
    ModelConfig,
    MoeConfig,
    MtpConfig,
    OptimizerConfig,
    ParallelismConfig,
    PerformanceConfig,
    PlatformConfig,
    PlatformKind,
    PrecisionConfig,
    RunConfig,
    ZeroKlConfig,
)
from launcher.schema.cluster import ClusterKind
from megatron_setup.layout.nearest import with_values

DENSE = Architecture(
    model_type="qwen3",
    num_layers=8,
    hidden_size=24,
    num_attention_heads=12,
    num_query_groups=4,
    kv_channels=2,
    ffn_hidden_size=48,
    vocab_size=96,
    max_position_embeddings=512,
    num_moe_experts=None,
    moe_router_topk=None,
    moe_ffn_hidden_size=None,
    share_embeddings_and_output_weights=False,
)
MOE = Architecture(
    model_type="qwen3_moe",
    num_layers=6,
    hidden_size=16,
    num_attention_heads=4,
    num_query_groups=2,
    kv_channels=4,
    ffn_hidden_size=32,
    vocab_size=64,
    max_position_embeddings=512,
    num_moe_experts=4,
    moe_router_topk=2,
    moe_ffn_hidden_size=8,
    share_embeddings_and_output_weights=True,
)


def plain_config(kind: JobKind = JobKind.mismatch) -> RunConfig:
    """Every default, on the CPU platform."""
    return RunConfig(
        model=ModelConfig(name="tiny"),
        parallelism=ParallelismConfig(),
        moe=MoeConfig(),
        mtp=MtpConfig(),
        precision=PrecisionConfig(),
        performance=PerformanceConfig(),
        optimizer=OptimizerConfig(),
        checkpoint=CheckpointConfig(),
        generation=GenerationConfig(),
        zero_kl=ZeroKlConfig(),
        platform=PlatformConfig(kind=PlatformKind.cpu),
        cluster=ClusterConfig(kind=ClusterKind.local),
        job=JobConfig(kind=kind),
    )


def subject(shape: Architecture | None, **values: Any) -> Subject:
    """The plain configuration with `group__name=value` changed, and a shape."""
    changed = {key.replace("__", "."): value for key, value in values.items()}
    return Subject(config=with_values(plain_config(), values=changed), architecture=shape)


def typed(subject: Subject, *, hints: tuple[str, ...]) -> Subject:
    """The subject after these overrides were typed."""
    words = {"null": None, "true": True, "false": False}
    pairs = (hint.split("=", 1) for hint in hints)
    values = {key: words[value] if value in words else int(value) for key, value in pairs}
    return Subject(config=with_values(subject.config, values=values), architecture=subject.architecture)

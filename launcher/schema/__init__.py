"""Typed configuration: one frozen keyword-only dataclass per Hydra group, and `RunConfig` that holds them all.

Owns names, types, defaults and what each field means. Owns no rule about values: those are rows in the tables.
"""

from dataclasses import dataclass

from launcher.schema.architecture import Architecture, architecture_from_hf_config
from launcher.schema.checkpoint import CheckpointConfig
from launcher.schema.cluster import ClusterConfig
from launcher.schema.generation import GenerationConfig
from launcher.schema.job import JobConfig, JobKind
from launcher.schema.model import ModelConfig
from launcher.schema.moe import MoeConfig
from launcher.schema.mtp import MtpConfig
from launcher.schema.optimizer import OptimizerConfig
from launcher.schema.parallelism import ParallelismConfig
from launcher.schema.performance import PerformanceConfig
from launcher.schema.platform import PlatformConfig, PlatformKind
from launcher.schema.precision import Dtype, PrecisionConfig
from launcher.schema.zero_kl import Backend, ZeroKlConfig


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One experiment, whole. Every group is a Hydra config group of the same name."""

    model: ModelConfig
    parallelism: ParallelismConfig
    moe: MoeConfig
    mtp: MtpConfig
    precision: PrecisionConfig
    performance: PerformanceConfig
    optimizer: OptimizerConfig
    checkpoint: CheckpointConfig
    generation: GenerationConfig
    zero_kl: ZeroKlConfig
    platform: PlatformConfig
    cluster: ClusterConfig
    job: JobConfig


__all__ = [
    "Architecture",
    "Backend",
    "CheckpointConfig",
    "ClusterConfig",
    "Dtype",
    "GenerationConfig",
    "JobConfig",
    "JobKind",
    "ModelConfig",
    "MoeConfig",
    "MtpConfig",
    "OptimizerConfig",
    "ParallelismConfig",
    "PerformanceConfig",
    "PlatformConfig",
    "PlatformKind",
    "PrecisionConfig",
    "RunConfig",
    "ZeroKlConfig",
    "architecture_from_hf_config",
]

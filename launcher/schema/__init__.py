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
    """What is trained and sampled."""

    parallelism: ParallelismConfig
    """How it is spread over ranks."""

    moe: MoeConfig
    """Mixture of experts."""

    mtp: MtpConfig
    """Multi-token prediction."""

    precision: PrecisionConfig
    """Number formats."""

    performance: PerformanceConfig
    """Kernels, recompute, fusions, graphs, batching."""

    optimizer: OptimizerConfig
    """Update rule, schedule, gradient reduction."""

    checkpoint: CheckpointConfig
    """Saving and resuming."""

    generation: GenerationConfig
    """Sampling with Megatron's engine."""

    zero_kl: ZeroKlConfig
    """Whether zero KL is required, and by which kernels."""

    platform: PlatformConfig
    """What the node must be."""

    cluster: ClusterConfig
    """Where the processes run."""

    job: JobConfig
    """What to do with the model."""

    output_dir: str = "outputs"
    """Folder of runs and caches, relative to the current directory."""

    force: bool = False
    """Run although an identical run has finished or is running."""


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

"""The optimizer, its schedule and the gradient reduction (DDP)."""

from dataclasses import dataclass
from enum import Enum


class OptimizerKind(Enum):
    """`OptimizerConfig.optimizer` of megatron-core."""

    adam = "adam"
    sgd = "sgd"


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Adam with decoupled weight decay, as megatron-core's defaults."""

    optimizer: OptimizerKind = OptimizerKind.adam
    """Update rule."""

    lr: float = 1e-3
    """Learning rate after warm-up."""

    weight_decay: float = 0.01
    """Decoupled weight decay."""

    clip_grad: float = 1.0
    """Largest global gradient norm. 0: off."""

    use_distributed_optimizer: bool = True
    """Shard optimizer state over the data-parallel ranks."""

    overlap_param_gather: bool = False
    """Gather updated parameters during the next forward pass."""

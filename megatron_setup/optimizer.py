"""Optimizer, schedule and gradient reduction. Owns megatron-core's OptimizerConfig and DDP settings."""

from typing import Any

from launcher.schema import Dtype, RunConfig


def optimizer_fields(config: RunConfig) -> dict[str, Any]:
    """Arguments of megatron-core's OptimizerConfig."""
    optimizer = config.optimizer
    return {
        "optimizer": optimizer.optimizer,
        "lr": optimizer.lr,
        "weight_decay": optimizer.weight_decay,
        "clip_grad": optimizer.clip_grad,
        "use_distributed_optimizer": optimizer.use_distributed_optimizer,
        "params_dtype": config.precision.dtype,
        "bf16": config.precision.dtype is Dtype.bfloat16,
        "fp16": config.precision.dtype is Dtype.float16,
    }


def ddp_fields(config: RunConfig) -> dict[str, Any]:
    """Arguments of megatron-core's DistributedDataParallelConfig."""
    return {
        "use_distributed_optimizer": config.optimizer.use_distributed_optimizer,
        "overlap_param_gather": config.optimizer.overlap_param_gather,
        "grad_reduce_in_fp32": True,
    }

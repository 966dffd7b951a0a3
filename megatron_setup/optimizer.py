"""Optimizer and gradient reduction. Owns the arguments of megatron-core's OptimizerConfig and of its
DistributedDataParallelConfig, and the rules about reduction; those about the update and its schedule are in
`megatron_setup.update_rule` and `megatron_setup.scheduler`. Torch-free.
"""

from typing import Any

from launcher.requirement import Condition, Equals, OneOf, Requirement
from launcher.schema import Dtype, JobKind, RunConfig
from launcher.schema.precision import Fp8Recipe
from megatron_setup import scheduler, update_rule
from megatron_setup.precision import fp8_recipe
from megatron_setup.rows import given, unread, where

_ARGUMENTS = "megatron-core 0.19.2 megatron/training/arguments.py"
_DDP = "megatron-core 0.19.2 distributed/distributed_data_parallel.py"

_OPTIMIZER = (
    "optimizer",
    "lr",
    "min_lr",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "adam_eps",
    "sgd_momentum",
    "clip_grad",
    "loss_scale",
    "initial_loss_scale",
    "min_loss_scale",
    "loss_scale_window",
    "hysteresis",
    "use_distributed_optimizer",
    "overlap_param_gather",
    "use_precision_aware_optimizer",
    "main_grads_dtype",
    "main_params_dtype",
    "exp_avg_dtype",
    "exp_avg_sq_dtype",
    "optimizer_cpu_offload",
    "optimizer_offload_fraction",
    "overlap_cpu_optimizer_d2h_h2d",
    "pin_cpu_grads",
    "pin_cpu_params",
)
_DDP_FIELDS = (
    "overlap_grad_reduce",
    "average_in_collective",
    "align_param_gather",
    "bucket_size",
    "check_for_nan_in_grad",
)


def provider_fields(config: RunConfig) -> dict[str, Any]:
    """What the model's loss must know."""
    return {"calculate_per_token_loss": config.optimizer.calculate_per_token_loss}


def _reuses_grad_buffer(config: RunConfig) -> bool:
    """MXFP8 weights cannot lie in the parameter buffer; their gather takes the gradients' one."""
    precision = config.precision
    return precision.fp8_param is True and fp8_recipe(precision) is Fp8Recipe.mxfp8


def optimizer_fields(config: RunConfig) -> dict[str, Any]:
    """Arguments of megatron-core's OptimizerConfig; its dtypes are the model's."""
    dtype = config.precision.dtype
    fp8 = {} if config.precision.fp8 is None else {"fp8_recipe": fp8_recipe(config.precision)}
    return {
        "params_dtype": dtype,
        "bf16": dtype is Dtype.bfloat16,
        "fp16": dtype is Dtype.float16,
        "reuse_grad_buf_for_mxfp8_param_ag": _reuses_grad_buffer(config),
        **given(config.optimizer, names=_OPTIMIZER),
        **fp8,
    }


def ddp_fields(config: RunConfig) -> dict[str, Any]:
    """Arguments of megatron-core's DistributedDataParallelConfig.

    Gradients are reduced in fp32 unless told otherwise: Bridge's BF16 recipes do so, the bare config does not.
    """
    ddp = config.optimizer.ddp
    return {
        "grad_reduce_in_fp32": True if ddp.grad_reduce_in_fp32 is None else ddp.grad_reduce_in_fp32,
        "use_distributed_optimizer": config.optimizer.use_distributed_optimizer,
        "overlap_param_gather": config.optimizer.overlap_param_gather,
        "fp8_param_gather": config.precision.fp8_param is True,
        "reuse_grad_buf_for_mxfp8_param_ag": _reuses_grad_buffer(config),
        **given(ddp, names=_DDP_FIELDS),
    }


def batch_size(config: RunConfig) -> int:
    """Sequences of one optimizer step, over all replicas."""
    given_size = config.performance.global_batch_size
    return config.job.num_prompts if given_size is None else given_size


_MCORE = "megatron-core"
LATE_GATHER = where(_MCORE, text="overlap_param_gather is true", test=lambda c: c.optimizer.overlap_param_gather)
NO_LATE_GATHER = where(
    _MCORE, text="overlap_param_gather is false", test=lambda c: not c.optimizer.overlap_param_gather
)
WHOLE_OPTIMIZER = where(
    _MCORE, text="use_distributed_optimizer is false", test=lambda c: not c.optimizer.use_distributed_optimizer
)
PER_TOKEN = where(_MCORE, text="calculate_per_token_loss is true", test=lambda c: c.optimizer.calculate_per_token_loss)
REDUCED_AT_THE_END = where(
    _MCORE, text="overlap_grad_reduce is not true", test=lambda c: c.optimizer.ddp.overlap_grad_reduce is not True
)
MISMATCH = Condition(who="the job", text="job.kind is mismatch", test=lambda s: s.config.job.kind is JobKind.mismatch)

REDUCTION_ROWS: tuple[Requirement, ...] = (
    Requirement(
        code="OP001",
        key="optimizer.overlap_param_gather",
        want=Equals(False),
        when=WHOLE_OPTIMIZER,
        why="without the distributed optimizer every rank has all parameters and there is nothing to gather",
        source=_ARGUMENTS,
        reads=("optimizer.use_distributed_optimizer",),
    ),
    Requirement(
        code="OP002",
        key="optimizer.ddp.overlap_grad_reduce",
        want=Equals(True),
        when=LATE_GATHER,
        why="the gather uses the buckets of the overlapped reduction; without it there is one bucket and no overlap",
        source=_ARGUMENTS,
        reads=("optimizer.overlap_param_gather",),
    ),
    Requirement(
        code="OP004",
        key="optimizer.ddp.align_param_gather",
        want=OneOf((None, False)),
        when=NO_LATE_GATHER,
        why="parameters are gathered at the end of the step, on all stages alike",
        source=_DDP,
        reads=("optimizer.overlap_param_gather",),
    ),
    Requirement(
        code="OP005",
        key="optimizer.ddp.average_in_collective",
        want=OneOf((None, False)),
        when=PER_TOKEN,
        why="ranks hold different numbers of tokens, and a collective averages over ranks",
        source=_DDP,
        reads=("optimizer.calculate_per_token_loss",),
    ),
    Requirement(
        code="OP007",
        key="performance.global_batch_size",
        want=Equals(None),
        when=MISMATCH,
        why="a step is taken on what one measurement has sampled: job.num_prompts sequences",
        source="launcher/jobs/mismatch.py",
        reads=("job.kind",),
    ),
    *unread(
        {"OP006": "optimizer.ddp.bucket_size"},
        when=REDUCED_AT_THE_END,
        why="without overlap_grad_reduce there is one bucket",
        source=_DDP,
        reads=("optimizer.ddp.overlap_grad_reduce",),
    ),
)

REQUIREMENTS: tuple[Requirement, ...] = REDUCTION_ROWS + update_rule.ROWS + scheduler.ROWS

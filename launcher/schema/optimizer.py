"""The optimizer, its schedule and the gradient reduction (DDP). Megatron-Core's spelling."""

from dataclasses import dataclass, field
from enum import Enum

from launcher.schema.precision import Dtype


class OptimizerKind(Enum):
    """`OptimizerConfig.optimizer` of megatron-core."""

    adam = "adam"
    sgd = "sgd"


class LrDecayStyle(Enum):
    """`SchedulerConfig.lr_decay_style` of Bridge, less inverse-square-root, which cannot name a member."""

    constant = "constant"
    linear = "linear"
    cosine = "cosine"
    WSD = "WSD"


class WsdDecayStyle(Enum):
    """`SchedulerConfig.lr_wsd_decay_style`."""

    exponential = "exponential"
    linear = "linear"
    cosine = "cosine"
    minus_sqrt = "minus_sqrt"


class WeightDecayStyle(Enum):
    """`SchedulerConfig.weight_decay_incr_style`."""

    constant = "constant"
    linear = "linear"
    cosine = "cosine"


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig:
    """Learning rate and weight decay over steps. null leaves Bridge's default."""

    lr_decay_style: LrDecayStyle = LrDecayStyle.constant
    """How the learning rate falls from optimizer.lr to optimizer.min_lr."""

    lr_decay_iters: int | None = None
    """Optimizer steps of the decay. null: job.num_steps."""

    lr_warmup_iters: int | None = None
    """Optimizer steps of the warm-up. 0: off."""

    lr_warmup_init: float | None = None
    """Learning rate at the first step of the warm-up."""

    lr_wsd_decay_style: WsdDecayStyle | None = None
    """How the learning rate falls in the last phase of WSD."""

    lr_wsd_decay_iters: int | None = None
    """Optimizer steps of the last phase of WSD."""

    start_weight_decay: float | None = None
    """Weight decay at the first step. null: optimizer.weight_decay."""

    end_weight_decay: float | None = None
    """Weight decay at the last step. null: optimizer.weight_decay."""

    weight_decay_incr_style: WeightDecayStyle | None = None
    """How the weight decay goes from start to end."""


@dataclass(frozen=True, kw_only=True)
class DdpConfig:
    """`DistributedDataParallelConfig`, what the optimizer does not set itself. null leaves Bridge's default."""

    grad_reduce_in_fp32: bool | None = None
    """Keep and reduce gradients in fp32."""

    overlap_grad_reduce: bool | None = None
    """Reduce gradients during the backward pass."""

    average_in_collective: bool | None = None
    """Let the collective average; it cannot, where the loss is per token."""

    align_param_gather: bool | None = None
    """All pipeline stages gather parameters at the same time."""

    bucket_size: int | None = None
    """Parameters of a reduction bucket."""

    check_for_nan_in_grad: bool | None = None
    """Stop at a NaN or an infinity before gradients are reduced."""


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Adam with decoupled weight decay, as megatron-core's defaults. null leaves megatron-core's default."""

    optimizer: OptimizerKind = OptimizerKind.adam
    """Update rule."""

    lr: float = 1e-3
    """Learning rate after warm-up."""

    min_lr: float = 0.0
    """Learning rate at the end of the decay."""

    weight_decay: float = 0.01
    """Decoupled weight decay."""

    adam_beta1: float | None = None
    """Decay of Adam's mean of gradients, per step."""

    adam_beta2: float | None = None
    """Decay of Adam's mean of squared gradients, per step."""

    adam_eps: float | None = None
    """Added to the root of Adam's second moment."""

    sgd_momentum: float | None = None
    """Momentum of SGD."""

    clip_grad: float = 1.0
    """Largest global gradient norm. 0: off."""

    calculate_per_token_loss: bool = True
    """Divide by the valid tokens of the whole batch. false: mean of the microbatches' means."""

    loss_scale: float | None = None
    """Fixed loss scale for float16. null: dynamic."""

    initial_loss_scale: float | None = None
    """First value of the dynamic loss scale."""

    min_loss_scale: float | None = None
    """Smallest value of the dynamic loss scale."""

    loss_scale_window: float | None = None
    """Steps without overflow before the dynamic loss scale grows."""

    hysteresis: int | None = None
    """Overflows before the dynamic loss scale shrinks."""

    use_distributed_optimizer: bool = True
    """Shard optimizer state over the data-parallel ranks."""

    overlap_param_gather: bool = False
    """Gather updated parameters during the next forward pass."""

    use_precision_aware_optimizer: bool = False
    """Let the four dtypes below be narrower than fp32 (Adam with the distributed optimizer)."""

    main_grads_dtype: Dtype | None = None
    """Main gradients, with use_precision_aware_optimizer."""

    main_params_dtype: Dtype | None = None
    """Main parameters, with use_precision_aware_optimizer."""

    exp_avg_dtype: Dtype | None = None
    """Adam's mean of gradients, with use_precision_aware_optimizer."""

    exp_avg_sq_dtype: Dtype | None = None
    """Adam's mean of squared gradients, with use_precision_aware_optimizer."""

    optimizer_cpu_offload: bool = False
    """Keep optimizer state in host memory and step there."""

    optimizer_offload_fraction: float | None = None
    """Share of the state that is offloaded, 0 to 1, with optimizer_cpu_offload."""

    use_torch_optimizer_for_cpu_offload: bool | None = None
    """Step with torch.optim on the host instead of Transformer Engine's or APEX's fused optimizer."""

    overlap_cpu_optimizer_d2h_h2d: bool | None = None
    """Copy gradients and parameters while the host steps, with optimizer_cpu_offload."""

    pin_cpu_grads: bool | None = None
    """Page-locked host memory for offloaded gradients."""

    pin_cpu_params: bool | None = None
    """Page-locked host memory for offloaded parameters."""

    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    """Learning rate and weight decay over steps."""

    ddp: DdpConfig = field(default_factory=DdpConfig)
    """Gradient reduction."""

"""What trades memory or speed and should not change values: kernels, recompute, fusions, graphs, batching."""

from dataclasses import dataclass, field
from enum import Enum


class AttentionBackend(Enum):
    """`AttnBackend` of megatron-core."""

    flash = "flash"
    fused = "fused"
    unfused = "unfused"
    local = "local"
    auto = "auto"


class TransformerImpl(Enum):
    """`transformer_impl` of megatron-core."""

    local = "local"
    transformer_engine = "transformer_engine"
    inference_optimized = "inference_optimized"


class RecomputeGranularity(Enum):
    """`recompute_granularity` of megatron-core."""

    full = "full"
    selective = "selective"


class RecomputeMethod(Enum):
    """`recompute_method` of megatron-core."""

    uniform = "uniform"
    block = "block"


class RecomputeModule(Enum):
    """What `recompute_modules` of megatron-core may name."""

    core_attn = "core_attn"
    moe_act = "moe_act"
    layernorm = "layernorm"
    mla_up_proj = "mla_up_proj"
    mlp = "mlp"
    moe = "moe"
    shared_experts = "shared_experts"
    gdn_norm_out = "gdn_norm_out"


class OffloadModule(Enum):
    """What `offload_modules` of megatron-core may name."""

    attn_norm = "attn_norm"
    qkv_linear = "qkv_linear"
    core_attn = "core_attn"
    attn_proj = "attn_proj"
    mlp_norm = "mlp_norm"
    expert_fc1 = "expert_fc1"
    moe_act = "moe_act"
    fused_group_mlp = "fused_group_mlp"


class CrossEntropyFusion(Enum):
    """`cross_entropy_fusion_impl` of megatron-core."""

    native = "native"
    te = "te"


class CudaGraphImpl(Enum):
    """`cuda_graph_impl` of megatron-core."""

    none = "none"
    local = "local"
    transformer_engine = "transformer_engine"
    full_iteration = "full_iteration"


class CudaGraphModule(Enum):
    """`CudaGraphModule` of megatron-core: what `cuda_graph_modules` may name."""

    attn = "attn"
    mlp = "mlp"
    moe = "moe"
    moe_router = "moe_router"
    moe_preprocess = "moe_preprocess"
    mamba = "mamba"


@dataclass(frozen=True, kw_only=True)
class SequencePackingConfig:
    """Several sequences in one row (THD layout) instead of one padded sequence a row."""

    enabled: bool = False
    """false: off."""

    train_mb_tokens: int | None = None
    """Tokens of a packed row in training. null: micro_batch_size times seq_length."""

    logprob_mb_tokens: int | None = None
    """Tokens of a packed row in scoring. null: as in training."""


@dataclass(frozen=True, kw_only=True)
class DynamicBatchingConfig:
    """Sequences of similar length in a microbatch, as many as its tokens allow."""

    enabled: bool = False
    """false: off."""

    train_mb_tokens: int | None = None
    """Tokens of a microbatch in training, padding included. null: micro_batch_size times seq_length."""

    logprob_mb_tokens: int | None = None
    """Tokens of a microbatch in scoring. null: as in training."""

    sequence_length_round: int = 64
    """Rows are padded to a multiple of this many tokens."""


@dataclass(frozen=True, kw_only=True)
class PerformanceConfig:
    """null leaves Bridge's default."""

    attention_backend: AttentionBackend = AttentionBackend.auto
    """Which attention kernel Transformer Engine may take."""

    flash_attention_version: int | None = None
    """2, 3 or 4. null: the newest that is installed."""

    transformer_impl: TransformerImpl = TransformerImpl.transformer_engine
    """Whose layers the model is built of."""

    micro_batch_size: int = 4
    """Sequences per forward pass in training and in scoring."""

    global_batch_size: int | None = None
    """Sequences per optimizer step over all replicas. null: all of a measurement's requests."""

    make_sequence_length_divisible_by: int = 1
    """Training and scoring rows are padded to a multiple of this many tokens. 1: no padding."""

    sequence_packing: SequencePackingConfig = field(default_factory=SequencePackingConfig)
    """Packed rows."""

    dynamic_batching: DynamicBatchingConfig = field(default_factory=DynamicBatchingConfig)
    """Microbatches sized by tokens."""

    logprob_chunk_size: int | None = None
    """Tokens whose logits exist at a time in scoring; needs defer_fp32_logits. null: all at once."""

    defer_fp32_logits: bool = False
    """Leave logits in the model's dtype until the log-probability is taken."""

    use_fused_linear_logprobs: bool = False
    """Compute log-probabilities from hidden states without ever holding a row's logits."""

    deterministic_mode: bool = False
    """megatron-core's switch for run-to-run equal kernels; wants CUBLAS_WORKSPACE_CONFIG=:4096:8."""

    recompute_granularity: RecomputeGranularity | None = None
    """Compute activations again in the backward pass: whole layers or chosen modules. null: off."""

    recompute_method: RecomputeMethod | None = None
    """Which layers full recompute takes: even chunks of all, or the first of each stage. null: all of them."""

    recompute_num_layers: int | None = None
    """uniform: layers of a chunk. block: layers of each stage."""

    recompute_modules: list[RecomputeModule] | None = None
    """What selective recompute takes. null: core_attn."""

    apply_rope_fusion: bool | None = None
    """Fused rotary embedding."""

    bias_activation_fusion: bool | None = None
    """Fused bias and activation."""

    bias_dropout_fusion: bool | None = None
    """Fused bias, dropout and residual."""

    masked_softmax_fusion: bool | None = None
    """Fused mask and softmax."""

    gradient_accumulation_fusion: bool = False
    """Add weight gradients in the GEMM. The output layer is Megatron's own and then needs apex, which is not among the
    packages; Bridge would switch it on as soon as Transformer Engine is there."""

    cross_entropy_loss_fusion: bool | None = None
    """Fused cross entropy."""

    cross_entropy_fusion_impl: CrossEntropyFusion | None = None
    """Whose fused cross entropy."""

    cuda_graph_impl: CudaGraphImpl = CudaGraphImpl.none
    """Who captures CUDA graphs of the training model. none: off."""

    cuda_graph_modules: list[CudaGraphModule] | None = None
    """What a layer's graph holds. null: the whole layer."""

    cuda_graph_warmup_steps: int | None = None
    """Steps before the capture."""

    use_te_rng_tracker: bool = False
    """Transformer Engine's random state, which a CUDA graph can hold."""

    inference_rng_tracker: bool = False
    """A random state of its own for generation, which a CUDA graph can hold."""

    fine_grained_activation_offloading: bool = False
    """Keep the inputs of `offload_modules` in host memory until the backward pass."""

    offload_modules: list[OffloadModule] | None = None
    """Modules whose inputs are offloaded. null: none."""

    min_offloaded_tensor_size: int | None = None
    """Smallest tensor to offload, in elements."""

    activation_offload_fraction: float | None = None
    """Share of the eligible tensors that is offloaded, 0 to 1."""

    layernorm_epsilon: float | None = None
    """Added to the variance in every norm. null: the checkpoint's."""

    use_mamba_mem_eff_path: bool | None = None
    """Fused Mamba training scan (hybrid models); its sums differ from those of decode."""

    empty_unused_memory_level: int | None = None
    """Return cached GPU memory to the driver each step: 0 off, 1 moderate, 2 aggressive."""

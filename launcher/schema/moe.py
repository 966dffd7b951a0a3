"""Mixture of experts: router, dispatcher, experts. Megatron-Core's spelling."""

from dataclasses import dataclass
from enum import Enum


class TokenDispatcher(Enum):
    """`moe_token_dispatcher_type` of megatron-core."""

    allgather = "allgather"
    alltoall = "alltoall"
    flex = "flex"


class InferenceTokenDispatcher(Enum):
    """`inference_moe_token_dispatcher_type` of megatron-core."""

    nccl = "nccl"
    nvls = "nvls"


class FlexDispatcherBackend(Enum):
    """`moe_flex_dispatcher_backend` of megatron-core."""

    deepep = "deepep"
    hybridep = "hybridep"
    ncclep = "ncclep"


class LoadBalancing(Enum):
    """`moe_router_load_balancing_type` of megatron-core, where it is one strategy and not a list."""

    aux_loss = "aux_loss"
    seq_aux_loss = "seq_aux_loss"
    global_aux_loss = "global_aux_loss"
    sinkhorn = "sinkhorn"
    quantile_balancing = "quantile_balancing"
    none = "none"


@dataclass(frozen=True, kw_only=True)
class MoeConfig:
    """null leaves the checkpoint's own value (Bridge's provider). All is ignored by a dense model."""

    moe_token_dispatcher_type: TokenDispatcher = TokenDispatcher.alltoall
    """How tokens reach the experts' ranks."""

    inference_moe_token_dispatcher_type: InferenceTokenDispatcher = InferenceTokenDispatcher.nccl
    """The dispatcher of `transformer_impl=inference_optimized`. Every other one generates with training's, yet with
    EP > 1 the engine allocates the buffers of nvls, which need NVLink multicast; nccl has none."""

    moe_permute_fusion: bool = False
    """Fuse the permutation kernels (Transformer Engine)."""

    moe_router_dtype: str | None = "fp32"
    """Number format of the router's matrix product: fp32, fp64, or null for the model's own."""

    moe_grouped_gemm: bool | None = None
    """Compute a rank's experts in one grouped GEMM."""

    moe_router_load_balancing_type: LoadBalancing | None = None
    """What keeps the experts equally busy. none: nothing does."""

    moe_aux_loss_coeff: float | None = None
    """Weight of the load-balancing loss. 0: off."""

    moe_z_loss_coeff: float | None = None
    """Weight of the loss on large router logits."""

    moe_router_enable_expert_bias: bool | None = None
    """Balance by a bias per expert instead of a loss."""

    moe_router_bias_update_rate: float | None = None
    """Change of the expert bias per step. 0: the bias stays."""

    moe_router_num_groups: int | None = None
    """Groups of experts of group-limited routing."""

    moe_router_group_topk: int | None = None
    """Groups that a token may reach in group-limited routing."""

    moe_router_fusion: bool | None = None
    """Fuse top-k routing and the auxiliary loss (Transformer Engine)."""

    moe_router_padding_for_quantization: bool | None = None
    """Pad each expert's token count to a multiple of 16 or 32 in the routing map, for FP8."""

    freeze_moe_router: bool = False
    """Train everything but the routers' weights."""

    moe_enable_routing_replay: bool = False
    """Record the experts chosen in generation and use them again in training."""

    moe_shared_expert_overlap: bool = False
    """Compute the shared expert while tokens travel; moves it behind the router and changes the order of sums."""

    moe_expert_capacity_factor: float | None = None
    """Tokens an expert accepts, over the even share; the rest are dropped."""

    moe_pad_expert_input_to_capacity: bool | None = None
    """Pad each expert's input to its capacity."""

    moe_pad_experts_for_cuda_graph_inference: bool = False
    """Pad experts during decode so that a CUDA graph can hold the MoE layer."""

    moe_latent_size: int | None = None
    """Width of the projection around the experts."""

    moe_per_layer_logging: bool | None = None
    """Log the router's losses per layer."""

    overlap_moe_expert_parallel_comm: bool | None = None
    """Hide the dispatcher's communication behind another microbatch."""

    moe_enable_deepep: bool = False
    """Old switch of the DeepEP dispatcher; megatron-core 0.19 wants moe_flex_dispatcher_backend=deepep."""

    moe_flex_dispatcher_backend: FlexDispatcherBackend | None = None
    """Whose kernels the flex dispatcher uses; read only with moe_token_dispatcher_type=flex."""

    moe_flex_dispatcher_num_sms: int | None = None
    """Streaming multiprocessors given to the flex dispatcher, DeepEP's and HybridEP's alike (it replaces
    moe_deepep_num_sms and moe_hybridep_num_sms). null: the backend's choice."""

    moe_permute_fusion_into_hybridep: bool | None = None
    """Permute inside HybridEP's dispatch kernel."""

    moe_hybridep_num_blocks_permute: int | None = None
    """Thread blocks of HybridEP's permute kernel."""

    moe_hybridep_num_blocks_unpermute: int | None = None
    """Thread blocks of HybridEP's unpermute kernel."""

    moe_hybridep_num_sms_preprocessing: int | None = None
    """Streaming multiprocessors of HybridEP's metadata kernel."""

    num_of_hybrid_ep_ranks_per_nvlink_domain: int | None = None
    """HybridEP's environment variable of that name: expert ranks that share an NVLink domain. null: not set."""

    use_mnnvl: bool | None = None
    """HybridEP's environment variable of that name: NVLink spans nodes (GB200 NVL72). null: not set."""

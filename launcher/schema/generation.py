"""Generation with Megatron's own dynamic engine: sampling, KV cache, CUDA graphs, layout and refit."""

from dataclasses import dataclass
from enum import Enum

from launcher.schema.performance import CudaGraphImpl, TransformerImpl
from launcher.schema.precision import Dtype


class GenerationBackend(Enum):
    """Engines that can generate here."""

    megatron = "megatron"


class LogprobsMode(Enum):
    """`logprobs_mode` of megatron-core: of the model, or of what was sampled from."""

    raw_logprobs = "raw_logprobs"
    processed_logprobs = "processed_logprobs"


class KvCacheManagementMode(Enum):
    """`KVCacheManagementMode` of megatron-core."""

    persist = "persist"
    offload = "offload"
    recompute = "recompute"


class InferenceCudaGraphScope(Enum):
    """`InferenceCudaGraphScope` of megatron-core: what owns a graph."""

    none = "none"
    layer = "layer"
    block = "block"


class CudaGraphSizingDistribution(Enum):
    """`CudaGraphSizingDistribution` of megatron-core: how the captured batch sizes are spaced."""

    exponential = "exponential"
    linear = "linear"


class RefitMethod(Enum):
    """`RefitBackendName` of megatron-core: what carries weights from training to generation."""

    nccl = "nccl"
    gloo = "gloo"
    nvshmem = "nvshmem"
    nixl = "nixl"


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """Sizes are tokens unless the name says otherwise."""

    backend: GenerationBackend = GenerationBackend.megatron
    """Whose engine generates."""

    colocated: bool = True
    """Generate on the ranks that train."""

    max_new_tokens: int = 32
    """Tokens sampled per request (no stop token is honoured: every request has the same length)."""

    temperature: float = 1.0
    """Softmax temperature of sampling; log-probabilities are raw and ignore it."""

    top_p: float = 1.0
    """Nucleus threshold. 1: off."""

    top_k: int = 0
    """Sample among the k likeliest tokens. 0: off."""

    logprobs_mode: LogprobsMode = LogprobsMode.raw_logprobs
    """Log-probabilities of the model, or of the distribution after temperature, top_k and top_p."""

    max_sequence_length: int | None = None
    """Longest prompt and response together. null: model.seq_length."""

    block_size_tokens: int = 16
    """Tokens per KV-cache block."""

    buffer_size_gb: float = 0.05
    """KV-cache buffer per rank."""

    max_requests: int = 32
    """Requests in flight."""

    max_tokens: int = 1024
    """Tokens per engine step (prefill and decode)."""

    enable_chunked_prefill: bool = False
    """Spread a long prompt over several engine steps."""

    enable_prefix_caching: bool = False
    """Share KV-cache blocks between requests that begin alike."""

    num_speculative_tokens: int = 0
    """Tokens drafted per decode step. 0: off."""

    kv_cache_management_mode: KvCacheManagementMode = KvCacheManagementMode.recompute
    """What becomes of the KV cache while training has the GPU; after an update only `recompute` is not stale."""

    static_kv_memory_pointers: bool = False
    """Give the KV cache the same addresses after each pause, so that CUDA graphs stay valid."""

    unified_memory_level: int = 0
    """1: the KV cache may spill into host memory. 0: off."""

    cuda_graph_impl: CudaGraphImpl = CudaGraphImpl.none
    """Who captures CUDA graphs of generation. none: off."""

    num_cuda_graphs: int = 0
    """Batch sizes that get a graph of their own. 0: off."""

    cuda_graph_sizing_distribution: CudaGraphSizingDistribution = CudaGraphSizingDistribution.exponential
    """Captured batch sizes. exponential: max_requests halved down to 1. linear: equal steps up to max_requests."""

    inference_cuda_graph_scope: InferenceCudaGraphScope = InferenceCudaGraphScope.none
    """What a graph holds. none: off."""

    use_cuda_graphs_for_non_decode_steps: bool = False
    """Graphs for prefill and mixed steps too."""

    transformer_impl: TransformerImpl | None = None
    """Whose layers generation's model is built of. null: performance.transformer_impl; another value means a second
    model and a refit at every wake."""

    tensor_model_parallel_size: int | None = None
    """Tensor parallelism of generation. null: training's."""

    pipeline_model_parallel_size: int | None = None
    """Pipeline parallelism of generation. null: training's."""

    expert_model_parallel_size: int | None = None
    """Expert parallelism of generation. null: training's."""

    expert_tensor_parallel_size: int | None = None
    """Expert tensor parallelism of generation. null: training's."""

    refit_method: RefitMethod | None = None
    """What carries weights to a second model. null: nccl on GPUs, gloo on the CPU platform."""

    mamba_inference_ssm_states_dtype: Dtype | None = None
    """State of Mamba layers in decode (hybrid models). null: the model's dtype."""

"""How the model is spread over ranks. Megatron-Core's spelling."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ParallelismConfig:
    """Sizes of the parallel groups; the world is TP x CP x PP x DP ranks."""

    tensor_model_parallel_size: int = 1
    """Ranks that share each layer's matrices."""

    pipeline_model_parallel_size: int = 1
    """Ranks that hold consecutive layers."""

    virtual_pipeline_model_parallel_size: int | None = None
    """Model chunks per pipeline rank (interleaved schedule). null: off."""

    context_parallel_size: int = 1
    """Ranks that share each sequence."""

    expert_model_parallel_size: int = 1
    """Ranks that share the experts of an MoE layer."""

    expert_tensor_parallel_size: int | None = None
    """Ranks that share each expert's matrices. null: megatron-core takes the tensor-parallel size."""

    sequence_parallel: bool = False
    """Split norms and dropouts along the sequence over the tensor-parallel ranks."""

    data_parallel_size: int | None = None
    """Replicas. null: what the number of processes leaves, or 1 where that is null too."""

    num_layers_in_first_pipeline_stage: int | None = None
    """Layers of the first stage where the split is uneven. null: even."""

    num_layers_in_last_pipeline_stage: int | None = None
    """Layers of the last stage where the split is uneven. null: even."""

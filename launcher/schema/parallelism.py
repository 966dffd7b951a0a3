"""How the model is spread over ranks. Megatron-Core's spelling."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ParallelismConfig:
    """Sizes of the parallel groups; the world is TP x CP x PP x DP ranks."""

    tensor_model_parallel_size: int = 1
    """Ranks that share each layer's matrices. 1: off."""

    pipeline_model_parallel_size: int = 1
    """Ranks that hold consecutive layers. 1: off."""

    virtual_pipeline_model_parallel_size: int | None = None
    """Model chunks per pipeline rank (interleaved schedule). null: off."""

    context_parallel_size: int = 1
    """Ranks that share each sequence. 1: off."""

    expert_model_parallel_size: int = 1
    """Ranks that share the experts of an MoE layer. 1: off."""

    expert_tensor_parallel_size: int | None = None
    """Ranks that share each expert's matrices. null: Megatron-Bridge takes 1 where expert_model_parallel_size is
    over 1, and megatron-core takes the tensor-parallel size otherwise."""

    sequence_parallel: bool = False
    """Split norms and dropouts along the sequence over the tensor-parallel ranks."""

    data_parallel_size: int | None = None
    """Replicas. null: what the number of processes leaves, or 1 where that is null too."""

    num_layers_in_first_pipeline_stage: int | None = None
    """Layers of the first stage where the split is uneven. null: even."""

    num_layers_in_last_pipeline_stage: int | None = None
    """Layers of the last stage where the split is uneven. null: even."""

    account_for_embedding_in_pipeline_split: bool = False
    """Count the embedding as one layer when layers are dealt to the stages."""

    account_for_loss_in_pipeline_split: bool = False
    """Count the loss as one layer when layers are dealt to the stages."""

    pipeline_model_parallel_layout: str | None = None
    """The stages spelled out, as megatron-core reads them: "Et*3|(tt|)*29,m|L". null: off, the sizes above decide."""

    microbatch_group_size_per_vp_stage: int | None = None
    """Microbatches that a virtual stage runs in one go. null: the pipeline-parallel size."""

    overlap_p2p_comm: bool | None = None
    """Send between stages while computing; excludes batch_p2p_comm. null: megatron-core's default."""

    batch_p2p_comm: bool | None = None
    """Send between stages by batch_isend_irecv; excludes overlap_p2p_comm. null: megatron-core's default."""

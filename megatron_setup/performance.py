"""Kernels, fusions, rows of tokens. Owns the provider's fields that trade memory or speed, and their environment.

Owns the rules about kernels; those about recompute and offloading are in `megatron_setup.memory`. Torch-free.
"""

from typing import Any

from launcher.requirement import Between, Check, Equals, Finding, OneOf, Requirement, Subject, show
from launcher.schema import Backend, PlatformKind, RunConfig
from launcher.schema.performance import AttentionBackend, CudaGraphImpl
from megatron_setup import memory
from megatron_setup.precision import FP8, fp8_recipe, row_tile
from megatron_setup.rows import given, unread, where

_LANGUAGE_MODULE = "megatron-core 0.19.2 models/common/language_module/language_module.py"
_DETERMINISM = "megatron-core 0.19.2 megatron/training/determinism.py"

_FIELDS = (
    "attention_backend",
    "flash_attention_version",
    "deterministic_mode",
    "recompute_granularity",
    "recompute_method",
    "recompute_num_layers",
    "recompute_modules",
    "apply_rope_fusion",
    "bias_activation_fusion",
    "bias_dropout_fusion",
    "masked_softmax_fusion",
    "gradient_accumulation_fusion",
    "cross_entropy_loss_fusion",
    "cross_entropy_fusion_impl",
    "use_te_rng_tracker",
    "inference_rng_tracker",
    "fine_grained_activation_offloading",
    "offload_modules",
    "min_offloaded_tensor_size",
    "activation_offload_fraction",
    "layernorm_epsilon",
    "use_mamba_mem_eff_path",
)

_ATTENTION_VARIABLES: tuple[str, ...] = ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN")
_ALLOWED = {
    AttentionBackend.flash: "100",
    AttentionBackend.fused: "010",
    AttentionBackend.unfused: "001",
    AttentionBackend.local: "000",
    AttentionBackend.auto: "111",
}
"""What megatron-core sets the three to in the middle of building the model, and asserts about an exported value."""


def provider_fields(config: RunConfig) -> dict[str, Any]:
    """The settings that are not null, under the provider's own names."""
    return {
        "batch_invariant_mode": config.zero_kl.batch_invariant_mode,
        **given(config.performance, names=_FIELDS),
    }


def rng_fields(config: RunConfig) -> dict[str, Any]:
    """Arguments of megatron-core's `model_parallel_cuda_manual_seed`: whose random state the model keeps."""
    return {
        "te_rng_tracker": config.performance.use_te_rng_tracker,
        "inference_rng_tracker": config.performance.inference_rng_tracker,
    }


def environment(config: RunConfig) -> dict[str, str]:
    """Transformer Engine's switches for attention and offloading, and what deterministic kernels need.

    megatron-core sets the attention switches itself and asserts against another exported value, but only once GPUs are
    taken; set here, the plan shows them and a conflict is refused before.
    """
    if config.platform.kind is PlatformKind.cpu:
        return {}
    performance = config.performance
    variables = dict(zip(_ATTENTION_VARIABLES, _ALLOWED[performance.attention_backend], strict=True))
    if performance.flash_attention_version is not None:
        others = {2, 3, 4} - {performance.flash_attention_version}
        variables |= {f"NVTE_FLASH_ATTN_V{version}": "0" for version in others}
    if performance.fine_grained_activation_offloading:
        variables["NVTE_CPU_OFFLOAD_V1"] = "1"
    if performance.deterministic_mode:
        variables |= {
            "NCCL_ALGO": "Ring",
            "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0",
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        }
    return variables


def _rows_fill_tiles(subject: Subject) -> Finding | None:
    """A row of tokens, cut over the tensor-parallel ranks where sequences are, comes in whole FP8 tiles."""
    config = subject.config
    found = config.performance.make_sequence_length_divisible_by
    tile = row_tile(fp8_recipe(config.precision))
    ranks = config.parallelism.tensor_model_parallel_size if config.parallelism.sequence_parallel else 1
    if found > 0 and found % (tile * ranks) == 0:
        return None
    return Finding(
        found=show(found),
        wanted=f"a multiple of {tile * ranks}",
        arithmetic=f"{fp8_recipe(config.precision).value} rows of {tile} x tensor {ranks} = {tile * ranks}",
        hints=(f"performance.make_sequence_length_divisible_by={-(-max(found, 1) // (tile * ranks)) * tile * ranks}",),
    )


GRAPHS = where(
    "Megatron-Bridge",
    text="platform is not cpu, and performance.cuda_graph_impl or generation.cuda_graph_impl is not none",
    test=lambda c: (
        c.platform.kind is not PlatformKind.cpu
        and {c.performance.cuda_graph_impl, c.generation.cuda_graph_impl} != {CudaGraphImpl.none}
    ),
)
WHOLE_LOGITS = where("chunking", text="defer_fp32_logits is false", test=lambda c: not c.performance.defer_fp32_logits)
LATE_GATHER = where(
    "megatron-core", text="optimizer.overlap_param_gather is true", test=lambda c: c.optimizer.overlap_param_gather
)
TE_NATIVE = where(
    "te_native", text="zero_kl.backend is te_native", test=lambda c: c.zero_kl.backend is Backend.te_native
)
DETERMINISTIC = where(
    "deterministic_mode", text="deterministic_mode is true", test=lambda c: c.performance.deterministic_mode
)
NO_FLASH = where(
    "megatron-core",
    text="attention_backend is neither flash nor auto",
    test=lambda c: c.performance.attention_backend not in (AttentionBackend.flash, AttentionBackend.auto),
)
UNFUSED_LOSS = where(
    "megatron-core",
    text="cross_entropy_loss_fusion is false",
    test=lambda c: c.performance.cross_entropy_loss_fusion is False,
)

KERNEL_ROWS: tuple[Requirement, ...] = (
    Requirement(
        code="PE001",
        key="performance.flash_attention_version",
        want=OneOf((None, 4, 3, 2)),
        why="these are the versions that megatron-core calls",
        source="megatron-core 0.19.2 transformer/transformer_config.py",
    ),
    *unread(
        {"PE002": "performance.flash_attention_version"},
        when=NO_FLASH,
        why="FlashAttention is switched off",
        source=_LANGUAGE_MODULE,
        reads=("performance.attention_backend",),
    ),
    *unread(
        {"PE003": "performance.cross_entropy_fusion_impl"},
        when=UNFUSED_LOSS,
        why="the cross entropy is not fused",
        source=_LANGUAGE_MODULE,
        reads=("performance.cross_entropy_loss_fusion",),
    ),
    Requirement(
        code="PE004",
        key="performance.use_te_rng_tracker",
        want=Equals(True),
        when=GRAPHS,
        why="a CUDA graph replays the random state it captured unless Transformer Engine keeps it; "
        "Bridge asserts this once the model is built",
        source="megatron-bridge 0.6.2 models/gpt_provider.py",
        reads=("performance.cuda_graph_impl", "generation.cuda_graph_impl"),
    ),
    Requirement(
        code="PE005",
        key="performance.deterministic_mode",
        want=Equals(False),
        when=TE_NATIVE,
        why="the two want other values of CUBLAS_WORKSPACE_CONFIG: :0:0 starves cuBLAS of workspace, :4096:8 gives it",
        source=f"{_DETERMINISM}, zero_kl/environment.py",
        reads=("zero_kl.backend",),
    ),
    Requirement(
        code="PE006",
        key="performance.cross_entropy_loss_fusion",
        want=Equals(False),
        when=DETERMINISTIC,
        why="the fused cross entropy is not deterministic, and null leaves it on in Bridge's providers",
        source=f"{_DETERMINISM}, megatron-bridge 0.6.2 models/gpt_provider.py",
        reads=("performance.deterministic_mode",),
    ),
    Requirement(
        code="PE007",
        key="performance.layernorm_epsilon",
        want=Between(low=0.0),
        why="it is added to a variance",
        source="megatron-core 0.19.2 transformer/transformer_config.py",
    ),
    Requirement(
        code="PE008",
        key="performance.make_sequence_length_divisible_by",
        want=Between(low=1),
        why="rows are padded to a multiple of it; 1 is off",
        source="launcher/jobs/mismatch.py",
    ),
    Requirement(
        code="PE009",
        key="performance.make_sequence_length_divisible_by",
        want=Check("a multiple of the FP8 tile, times tensor where sequences are split", _rows_fill_tiles),
        when=FP8,
        why="FP8 tensors are scaled in tiles of rows: 16 for a GEMM, 32 (mxfp8) or 128 (blockwise) a scale",
        source="transformer-engine 2.20.2 pytorch/tensor (is_quantizable); megatron-core 0.19.2 fp8_utils.py",
        reads=(
            "precision.fp8",
            "precision.fp8_recipe",
            "parallelism.tensor_model_parallel_size",
            "parallelism.sequence_parallel",
        ),
    ),
    Requirement(
        code="PE010",
        key="performance.logprob_chunk_size",
        want=Equals(None),
        when=WHOLE_LOGITS,
        why="all logits are turned into fp32 before the first chunk is taken, so chunks would save nothing",
        source="megatron-core 0.19.2 transformer/module.py, Float16Module.forward",
        reads=("performance.defer_fp32_logits",),
    ),
    Requirement(
        code="PE011",
        key="performance.use_fused_linear_logprobs",
        want=Equals(False),
        when=LATE_GATHER,
        why="it reads the output layer's weight without calling the layer, whose forward hook would have gathered it",
        source="megatron-core 0.19.2 distributed/distributed_data_parallel.py, _make_forward_pre_hook",
        reads=("optimizer.overlap_param_gather",),
    ),
)

REQUIREMENTS: tuple[Requirement, ...] = KERNEL_ROWS + memory.ROWS

"""Every name of torch, megatron-core and megatron-bridge that the CPU platform replaces, and why.

Pure data: the rows name their stand-ins. `TORCH` is applied before megatron is imported, `MEGATRON` after it.
"""

from megatron_setup.cpu.replacement import Constant, Replacement

_DEVICE = "megatron_setup.cpu.device"
_LAYERS = "megatron_setup.cpu.layers"
_ATTENTION = "megatron_setup.cpu.attention"


def _cuda(*names: str) -> tuple[str, ...]:
    return tuple(f"torch.cuda.{name}" for name in names)


TORCH = (
    Replacement(
        targets=("torch.compile",),
        by=f"{_DEVICE}.leave_uncompiled",
        why="megatron's jit_fuser: 16 s of inductor for the fusions of a tiny model",
    ),
    Replacement(
        targets=_cuda("current_device"),
        by=f"{_DEVICE}.current_device",
        why="megatron makes most tensors on the current device",
    ),
    Replacement(
        targets=("torch.Tensor.cuda", "torch.nn.Module.cuda", "torch.Tensor.pin_memory"),
        by=f"{_DEVICE}.stay",
        why="a move to the GPU and pinned memory need a driver",
    ),
    Replacement(
        targets=("torch.Tensor.type",),
        by=f"{_DEVICE}.tensor_type",
        why="megatron-core's optimizers compare the type's name with torch.cuda.FloatTensor and refuse others",
    ),
    Replacement(targets=_cuda("Stream"), by=f"{_DEVICE}.Stream", why="a stream cannot be made without a driver"),
    Replacement(targets=_cuda("Event"), by=f"{_DEVICE}.Event", why="an event cannot be made without a driver"),
    Replacement(targets=_cuda("current_stream"), by=f"{_DEVICE}.current_stream", why="megatron waits for streams"),
    Replacement(targets=_cuda("stream"), by=f"{_DEVICE}.stream", why="megatron switches streams"),
    Replacement(
        targets=_cuda("synchronize", "nvtx.range_push", "nvtx.range_pop"),
        by=f"{_DEVICE}.do_nothing",
        why="they wait for and annotate GPU work, and fail without a driver",
    ),
    Replacement(
        # not `do_nothing`: torch._dynamo has another rule for this name, and refuses one object with two rules
        targets=_cuda("set_device"),
        by=f"{_DEVICE}.set_device",
        why="megatron takes its rank's device",
    ),
    Replacement(
        targets=_cuda("_lazy_call"),
        by=f"{_DEVICE}.call_now",
        why="torch queues the call until CUDA is initialised, so megatron's RNG tracker would silently switch nothing",
    ),
    Replacement(
        targets=_cuda("default_generators"),
        by=f"{_DEVICE}.DEFAULT_GENERATORS",
        why="megatron's RNG tracker sets the state of the current device's generator",
    ),
    Replacement(
        targets=_cuda("get_rng_state", "random.get_rng_state"),
        by=f"{_DEVICE}.get_rng_state",
        why="megatron's RNG tracker and checkpoints keep the GPU generator's state",
    ),
    Replacement(
        targets=_cuda("set_rng_state"), by=f"{_DEVICE}.set_rng_state", why="checkpoints restore the generator's state"
    ),
    Replacement(
        targets=_cuda("manual_seed"),
        by=f"{_DEVICE}.manual_seed",
        why="torch queues it until CUDA is initialised, so the seed would have no effect",
    ),
)

MEGATRON = (
    Replacement(
        targets=("megatron.core.transformer.transformer_config.TransformerConfig.__post_init__",),
        by="megatron_setup.cpu.fusions.post_init_without_fusions",
        why="Bridge turns fusions of Transformer Engine on for Llama and Qwen MoE, and megatron-core refuses them",
    ),
    Replacement(
        targets=(
            "megatron.core.models.gpt.gpt_layer_specs.TESpecProvider",
            "megatron.core.extensions.transformer_engine_spec_provider.TESpecProvider",
        ),
        by=f"{_LAYERS}.SpecProvider",
        why="Bridge and megatron-core ask Transformer Engine for the modules of a layer, multi-latent attention twice",
    ),
    Replacement(
        targets=(
            "megatron.core.models.gpt.gpt_layer_specs.TENorm",
            "megatron.core.transformer.transformer_block.LayerNormImpl",
        ),
        by=f"{_LAYERS}.Norm",
        why="the final norm; megatron-core's own torch norm refuses sequence parallelism",
    ),
    Replacement(
        targets=("megatron.core.optimizer.Adam",),
        by="megatron_setup.cpu.adam.FusedAdam",
        why="with torch's AdamW a fresh distributed optimizer cannot load a checkpoint",
    ),
    Replacement(
        targets=("megatron.core.optimizer.USING_PYTORCH_OPTIMIZER",),
        by=Constant(False),
        why="FusedAdam takes adam_w_mode, AdamW does not",
    ),
    Replacement(
        targets=(
            "megatron.core.optimizer.distrib_optimizer.HAVE_APEX_OR_TE",
            "megatron.core.optimizer.distrib_optimizer.USING_TE_OPTIMIZER",
        ),
        by=Constant(True),
        why="FusedAdam keeps its step in the parameter group, which must be aligned where a rank's group is empty",
    ),
    Replacement(
        targets=(
            "megatron.core.optimizer.cpu_offloading.hybrid_optimizer.HybridDeviceOptimizer"
            "._get_sub_optimizer_param_groups",
        ),
        by="megatron_setup.cpu.offload.split_params",
        why="offload splits by is_cuda: on a CPU nothing is offloaded, and the step looks for copies nobody made",
    ),
    Replacement(
        targets=("megatron.core.transformer.attention.flash_attn4_varlen_func",),
        by=f"{_ATTENTION}.flash_attn4_varlen_func",
        why="the dynamic engine attends over its paged cache with FlashAttention, prefill and decode",
        unbound_without="flash-attn-4",
    ),
    Replacement(
        targets=("megatron.core.transformer.attention.HAVE_FA4",),
        by=Constant(True),
        why="makes the dynamic engine take the call above",
    ),
    Replacement(
        targets=("megatron.core.inference.contexts.dynamic_context.triton_append_key_value_cache",),
        by=Constant(None),
        why="a Triton kernel; without it megatron-core appends to the cache in torch",
    ),
    Replacement(
        targets=("megatron.core.inference.communication_utils._is_cuda",),
        by=f"{_DEVICE}.do_nothing",
        why="asserts that tokens passed between pipeline stages are on a GPU",
    ),
    Replacement(
        targets=("megatron.core.transformer.moe.token_dispatcher.maybe_move_tensor_to_cpu",),
        by="megatron_setup.cpu.token_dispatcher.maybe_move_tensor_to_cpu",
        why="leaves split sizes that are on the CPU already as tensors, which all_to_all refuses",
    ),
    Replacement(
        targets=(
            "megatron.bridge.peft.utils.HAVE_TE",
            "megatron.bridge.peft.module_matcher.HAVE_TE_COL_LINEAR",
            "megatron.bridge.peft.module_matcher.HAVE_TE_LN_COL_LINEAR",
            "megatron.bridge.peft.module_matcher.HAVE_TE_ROW_LINEAR",
        ),
        by=Constant(False),
        why="LoRA compares linears with Transformer Engine's, which are no classes here: isinstance raises TypeError",
    ),
    Replacement(
        targets=("megatron.bridge.peft.lora.get_adapter_attributes_from_linear",),
        by="megatron_setup.cpu.adapters.adapter_attributes",
        why="LoRA asks Transformer Engine's fused norm and linear for the norm's output, and no other class: an "
        "adapter would read what comes before the norm",
    ),
    Replacement(
        targets=("megatron.core.dist_checkpointing.strategies.filesystem_async._results_queue",),
        by=f"{_DEVICE}.RESULTS",
        why="otherwise each process spawns a multiprocessing.Manager: 11 s and 500 MB for a tiny checkpoint",
    ),
    Replacement(
        targets=("megatron.core.dist_checkpointing.strategies.async_utils.PersistentAsyncCaller.async_loop",),
        by="megatron_setup.cpu.writer.async_loop",
        why="the background writer is a new process, which takes a GPU, dies without one, and its rank waits for ever",
    ),
)

"""One conversion by Megatron-Bridge: a Hugging Face folder in, a checkpoint of weights and run_config.yaml out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from megatron.bridge import AutoBridge
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.spec_utils import ModuleSpec

from launcher.schema import PlatformKind, RunConfig
from megatron_setup.performance import provider_fields
from megatron_setup.provider import set_fields

_KERNELS = ("attention_backend", "flash_attention_version", "gradient_accumulation_fusion")

Spec = ModuleSpec | Callable[..., ModuleSpec]


def convert_with_bridge(
    config: RunConfig,
    *,
    source: Path,
    target: Path,
    model_post_wrap_hook: Callable[[list[MegatronModule]], list[MegatronModule]] | None = None,
    transformer_layer_spec: Spec | None = None,
    hybrid_stack_spec: Spec | None = None,
) -> None:
    """Convert on this process alone, which has joined a world of one.

    `AutoBridge.import_ckpt` in its three steps, because on a GPU the model must be built with the run's own kernel
    settings: building it sets the attention variables of the process (NVTE_*), and the real model later asserts that
    they are its own. The hook gets the chunks with their weights, before they are saved; a spec replaces the
    provider's own (None). The cache's folder does not depend on them: they are code, and code has no stable hash.

    Peak host memory above the imports is 1.3 N (dense) to 1.5 N (experts) for a checkpoint of N bytes:
    `low_memory_save` hands each weight over instead of copying the model.
    """
    bridge = AutoBridge.from_hf_pretrained(str(source))
    provider = bridge.to_megatron_provider()
    if config.platform.kind is not PlatformKind.cpu:
        fields = provider_fields(config)
        set_fields(provider, fields={name: fields[name] for name in _KERNELS if name in fields})
    specs = {"transformer_layer_spec": transformer_layer_spec, "hybrid_stack_spec": hybrid_stack_spec}
    set_fields(provider, fields={name: spec for name, spec in specs.items() if spec is not None})
    provider.finalize()
    model: list[Any] = provider.provide_distributed_model(
        wrap_with_ddp=False, use_cpu_initialization=True, post_wrap_hook=model_post_wrap_hook
    )
    bridge.save_megatron_model(model, str(target), hf_tokenizer_path=str(source), low_memory_save=True)

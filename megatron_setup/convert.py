"""One conversion by Megatron-Bridge: a Hugging Face folder in, a checkpoint of weights and run_config.yaml out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from megatron.bridge import AutoBridge

from launcher.schema import PlatformKind, RunConfig
from megatron_setup.performance import provider_fields
from megatron_setup.provider import set_fields

_KERNELS = ("attention_backend", "flash_attention_version", "gradient_accumulation_fusion")


def convert_with_bridge(config: RunConfig, *, source: Path, target: Path) -> None:
    """Convert on this process alone, which has joined a world of one.

    `AutoBridge.import_ckpt` in its three steps, because on a GPU the model must be built with the run's own kernel
    settings: building it sets the attention variables of the process (NVTE_*), and the real model later asserts that
    they are its own.
    """
    bridge = AutoBridge.from_hf_pretrained(str(source))
    provider = bridge.to_megatron_provider()
    if config.platform.kind is not PlatformKind.cpu:
        fields = provider_fields(config)
        set_fields(provider, fields={name: fields[name] for name in _KERNELS if name in fields})
    provider.finalize()
    model: list[Any] = provider.provide_distributed_model(wrap_with_ddp=False, use_cpu_initialization=True)
    bridge.save_megatron_model(model, str(target), hf_tokenizer_path=str(source), low_memory_save=True)

"""The weights of a model back to a Hugging Face folder.

Owns that the folder appears only when it is whole. The conversion of names and shapes is Bridge's.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import torch.distributed as dist
from megatron.bridge import AutoBridge
from megatron.core.transformer.module import MegatronModule

_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json")


def export_hf(model: list[MegatronModule], *, hf_folder: Path, target: Path) -> None:
    """Write the weights to `target`, in the names and files of `hf_folder`. All ranks call it.

    Every other file (config.json, tokenizer, generation_config.json) is `hf_folder`'s, byte for byte. Weights that no
    step touched are equal to `hf_folder`'s to the bit. A killed export leaves a sibling `<target>.partial`, removed by
    the next one; a `target` of before is replaced when the new one is whole.
    """
    partial = target.with_name(f"{target.name}.partial")
    if dist.get_rank() == 0:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(hf_folder, partial, ignore=shutil.ignore_patterns(*_WEIGHTS))
    dist.barrier()
    AutoBridge.from_hf_pretrained(str(hf_folder)).save_hf_weights(model, str(partial), show_progress=False)
    if dist.get_rank() == 0:
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
    dist.barrier()

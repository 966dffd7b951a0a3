"""The CPU platform: real megatron-core and megatron-bridge on a machine without a GPU.

Owns `install()` and its order. Used by `platform=cpu` and the tests, nowhere else. What it replaces is in `table.py`,
what stands in for it in the other modules of this package. It proves nothing about GPU kernels.
"""

from __future__ import annotations

import torch

from launcher.errors import NodeError
from megatron_setup.cpu.device import CudaIsCpu
from megatron_setup.cpu.replacement import apply_replacements
from megatron_setup.cpu.table import MEGATRON, TORCH
from megatron_setup.cpu.te_absent import import_megatron

_installed = False


def install() -> None:
    """Make `cuda` mean the CPU for this process and import megatron on top of it; a second call does nothing.

    The calling thread keeps the device mode for good, and forked children inherit all of it.
    Raises NodeError where a GPU is visible, where Megatron is already imported, or where upstream lacks a name of
    `table.py`.
    """
    global _installed
    if _installed:
        return
    if torch.cuda.is_available():
        raise NodeError(
            "platform=cpu is for machines without a GPU, and this one has a GPU: use platform=hopper or blackwell"
        )
    apply_replacements(TORCH)
    CudaIsCpu().__enter__()
    import_megatron()
    apply_replacements(MEGATRON)
    _installed = True

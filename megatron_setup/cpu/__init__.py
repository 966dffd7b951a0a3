"""The CPU platform: real megatron-core and megatron-bridge on a machine without a GPU.

Owns `install()` and its order. Used by `platform=cpu` and the tests, nowhere else. What it replaces is in `table.py`,
what stands in for it in the other modules of this package. It proves nothing about GPU kernels.
"""

from __future__ import annotations

import gc

import torch

from launcher.errors import NodeError
from megatron_setup.cpu.absent import import_megatron
from megatron_setup.cpu.device import CudaIsCpu
from megatron_setup.cpu.replacement import apply_replacements
from megatron_setup.cpu.table import MEGATRON, TORCH

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
    check_no_gpu()
    apply_replacements(TORCH)
    CudaIsCpu().__enter__()
    import_megatron()
    apply_replacements(MEGATRON)
    gc.freeze()  # the imports leave a million objects: each later gc.collect() of Bridge and the engine would take 1 s
    _installed = True


def check_no_gpu() -> None:
    """Raises NodeError where a GPU is visible: its results would carry this platform's name."""
    if torch.cuda.is_available():
        raise NodeError(
            "error: platform=cpu is for machines without a GPU, and this one has a GPU\n"
            "hint: platform=hopper (sm_90) or platform=blackwell (sm_100 and newer)"
        )

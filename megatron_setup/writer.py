"""The process that writes saves in the background: it must not outlive its rank.

Owns the patch of megatron-core that makes it so, and starting it. Torch-free until the process runs.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Any

from launcher.patches import Patch, Rung

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have Linux kill this process when the one that started it dies, also where that has happened already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:
        sys.exit(1)


def async_loop(*arguments: Any) -> None:
    """megatron-core's loop, in a process that ends with its rank."""
    die_with_parent()
    from megatron.core.dist_checkpointing.strategies.async_utils import PersistentAsyncCaller

    PersistentAsyncCaller.async_loop(*arguments)


PATCHES = (
    Patch(
        targets=("megatron.core.dist_checkpointing.strategies.async_utils.PersistentAsyncCaller.async_loop",),
        replacement=async_loop,
        why="the writer waits for work for ever; a rank that is killed leaves it behind, with torch imported and, on a "
        "GPU, a context: fifty of them once took all memory of a machine",
        upstream="megatron-core 0.19.2 dist_checkpointing/strategies/async_utils.py",
        tested_versions={"megatron-core": "==0.19.2"},
        remove_when="megatron-core's writer notices that its parent is gone",
        rung=Rung.MONKEYPATCH,
        rung_reason="the loop is a static method that the process is started with; no setting and no hook reaches it",
    ),
)
"""In force while the process is started; the process itself imports megatron-core afresh and has upstream's loop."""

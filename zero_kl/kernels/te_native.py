"""Backend `te_native`: ordinary cuBLASLt GEMMs, starved of workspace so that no algorithm can split K.

A GEMM that splits K over blocks adds partial sums in an order that depends on the number of rows; it needs workspace
for them. Without workspace the heuristics choose among algorithms that sum each output element in one order.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from launcher.errors import NodeError
from launcher.patches import Patch, Rung, applied

WORKSPACE_BYTES = 0


def workspace_size_bytes() -> int:
    """Stands in for Transformer Engine's 32 MiB."""
    return WORKSPACE_BYTES


PATCHES = (
    Patch(
        targets=("transformer_engine.pytorch.cpp_extensions.gemm.get_cublas_workspace_size_bytes",),
        replacement=workspace_size_bytes,
        why="with workspace cuBLASLt splits K for few rows and not for many, so logits depend on the batch",
        upstream="transformer-engine 2.20.2, transformer_engine/pytorch/cpp_extensions/gemm.py",
        tested_versions={"transformer-engine": "==2.20.2"},
        remove_when="megatron-core has batch_invariant_backend=te_native (after 0.19.2)",
        rung=Rung.MONKEYPATCH,
        rung_reason="the size is a constant in a function; Transformer Engine reads no variable for it",
    ),
)


def _gemm_module() -> Any:
    """Imported by name: Transformer Engine is not installed where this is read by a type checker or tested."""
    return importlib.import_module("transformer_engine.pytorch.cpp_extensions.gemm")


@contextmanager
def starved() -> Iterator[None]:
    """GEMMs of Transformer Engine without workspace for the block; the cached workspaces are dropped on both ends.

    Raises NodeError where the workspace in force is not the starved one.
    """
    gemm = _gemm_module()
    with applied(PATCHES):
        gemm.get_cublas_workspace.cache_clear()
        try:
            check_starved()
            yield
        finally:
            gemm.get_cublas_workspace.cache_clear()


def check_starved() -> None:
    """Raise NodeError unless the workspaces that GEMMs will get have the starved size."""
    gemm = _gemm_module()
    device = torch.cuda.current_device()
    single = gemm.get_cublas_workspace(device, False, False)
    grouped = gemm.get_cublas_workspace(device, False, True)
    found = {single.numel(), *(w.numel() for w in grouped)}
    if found != {WORKSPACE_BYTES}:
        raise NodeError(
            f"error: Transformer Engine's GEMM workspaces have {sorted(found)} bytes, not {WORKSPACE_BYTES}"
        )

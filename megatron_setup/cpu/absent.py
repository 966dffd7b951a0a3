"""Imports megatron-core and megatron-bridge as if some packages were not installed, whether or not they are.

Owns which packages are hidden, why, and the stub that Bridge gets of Transformer Engine.
"""

from __future__ import annotations

import builtins
import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

from launcher.errors import NodeError

_TE = "transformer_engine"

HIDDEN = {
    _TE: "megatron-core would take its norms, router GEMM and optimizers, which are CUDA kernels",
    "sklearn": "transformers imports it, and scipy with it, for assisted decoding: a tenth of the import time",
    "wandb": "imported for logging that this platform does not do: a tenth of the import time",
    "diffusers": "imported for image models: a tenth of the import time",
}
"""Packages that cannot be imported on this platform, and why."""


def import_megatron() -> None:
    """Import `megatron.core` and `megatron.bridge` with the packages hidden, and keep them hidden.

    Raises NodeError where something has already imported Megatron or Transformer Engine.
    """
    for name in (_TE, "megatron.core", "megatron.bridge"):
        if sys.modules.get(name) is not None:
            raise NodeError(f"error: {name} is already imported: install the CPU platform first")
    for name in HIDDEN:
        sys.modules[name] = None  # type: ignore[assignment]  # an import of it is now a ModuleNotFoundError
    with _bridge_sees_stub():
        importlib.import_module("megatron.core")
        importlib.import_module("megatron.bridge")


class _NeedsGpu(torch.nn.Module):
    """A Transformer Engine class that Bridge subclasses or compares with at import time."""

    def __init__(self, *_: object, **__: object) -> None:
        raise NodeError("error: this layer is Transformer Engine's and needs a GPU")


@contextmanager
def _bridge_sees_stub() -> Iterator[None]:
    """Bridge's modules get a stub of Transformer Engine.

    `bridge.peft.lora_layers` imports it unconditionally. The model bridges (DeepSeek, GLM, Kimi, …) ask only whether it
    can be imported, and choose by that between the Transformer Engine spec, which the reference backend fills, and the
    local one.
    """
    linears = SimpleNamespace(Linear=_NeedsGpu, LayerNormLinear=_NeedsGpu, ops=SimpleNamespace(Sequential=_NeedsGpu))
    stub = SimpleNamespace(pytorch=linears)
    real_import = builtins.__import__

    def import_for(
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        importer = (globals or {}).get("__name__", "")  # templates compile code without a name
        asks_for_it = name in (_TE, f"{_TE}.pytorch") and not fromlist
        if asks_for_it and importer.startswith(("megatron.bridge.models.", "megatron.bridge.peft.")):
            return stub
        return real_import(name, globals, locals, fromlist, level)

    builtins.__import__ = import_for
    try:
        yield
    finally:
        builtins.__import__ = real_import

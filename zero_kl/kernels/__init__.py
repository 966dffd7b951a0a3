"""One switch for the kernels that make results independent of the batch. Each backend is a context that restores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from launcher.patches import applied
from launcher.schema import Backend, PlatformKind
from launcher.schema.zero_kl import ZeroKlConfig


@contextmanager
def enabled(zero_kl: ZeroKlConfig, *, platform: PlatformKind) -> Iterator[None]:
    """Switch on for the block the backend's kernels (`none` has none) and, where asked for, sums over ranks in order.

    On a GPU the caller has taken its device. Raises NodeError where a patch does not fit the installed versions.
    """
    backend = zero_kl.backend
    with ExitStack() as stack:
        if zero_kl.batch_invariant_collective:
            from zero_kl.kernels import reduction

            on_gpu = platform is not PlatformKind.cpu
            stack.enter_context(applied((*reduction.MCORE_PATCHES, *(reduction.TE_PATCHES if on_gpu else ()))))
        if backend is Backend.cpu_reference:
            from zero_kl.cpu_kernels import batch_invariant

            stack.enter_context(batch_invariant())
        if backend is Backend.megatron:
            from megatron.core.transformer.custom_layers.batch_invariant_kernels import set_batch_invariant_mode

            stack.enter_context(set_batch_invariant_mode(True))
        if backend in (Backend.te_native, Backend.megatron):
            from zero_kl.kernels import flash, moe
            from zero_kl.kernels.te_native import starved

            # Also under `megatron`: its kernels do not replace Transformer Engine's grouped GEMM, which experts use.
            stack.enter_context(starved())
            stack.enter_context(applied((*moe.PATCHES, *flash.patches())))
        yield

"""Updated parameters that are gathered late (`optimizer.overlap_param_gather`): all of them before they are read."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from megatron.core.distributed import DistributedDataParallel
from megatron.core.transformer.module import MegatronModule


@contextmanager
def parameters_gathered(model: Sequence[MegatronModule]) -> Generator[None]:
    """Within the context every rank has every updated parameter, and no forward gathers. Collective.

    Under `overlap_param_gather` a step leaves each rank with its own share, and the next training forward gathers the
    rest, layer by layer. Who reads weights before that gets old ones; who writes weights has them overwritten.
    A context within a context changes nothing.
    """
    # Only while its hooks are on does a chunk gather late.
    late = [c for c in model if isinstance(c, DistributedDataParallel) and c.remove_forward_pre_hook_handles]
    for chunk in late:
        chunk.disable_forward_pre_hook()
    try:
        yield
    finally:
        for chunk in late:
            chunk.enable_forward_pre_hook()

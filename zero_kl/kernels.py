"""One switch for the kernels that make results independent of the batch. Each backend is a context that restores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from launcher.errors import NodeError
from launcher.schema import Backend


@contextmanager
def enabled(backend: Backend) -> Iterator[None]:
    """Switch the backend's kernels on for the block; `none` changes nothing."""
    if backend is Backend.cpu_reference:
        from zero_kl.cpu_kernels import batch_invariant

        with batch_invariant():
            yield
    elif backend is Backend.none:
        yield
    else:
        raise NodeError(f"error: zero_kl.backend is {backend.value}, this version has no kernels for it yet")

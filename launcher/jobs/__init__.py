"""What a rank does once its environment is set. The one place that joins `megatron_setup` and `zero_kl`.

Imported only inside a worker: everything below here may import torch.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from launcher.paths import AttemptPaths
from launcher.placement import Placement, open_store
from launcher.records import ProgressWriter
from launcher.schema import Backend, JobKind, PlatformKind, RunConfig


@contextmanager
def platform(config: RunConfig, *, local_rank: int) -> Iterator[None]:
    """The platform and the kernels the configuration asks for, in force inside the block; on a GPU, this rank's."""
    with ExitStack() as stack:
        if config.platform.kind is PlatformKind.cpu:
            from megatron_setup import cpu

            cpu.install()
            if config.zero_kl.backend is Backend.cpu_reference:
                from megatron_setup.cpu.attention import use_core
                from zero_kl.cpu_kernels import attention

                stack.enter_context(use_core(attention))
        else:
            import torch

            torch.cuda.set_device(local_rank)
        from zero_kl.gates import check_node
        from zero_kl.kernels import enabled

        node = check_node(config)
        node.emit_warnings()
        node.raise_if_invalid(f"{socket.gethostname()} is refused")
        stack.enter_context(enabled(config.zero_kl.backend))
        yield


def run_job(config: RunConfig, *, paths: AttemptPaths, placement: Placement, progress: ProgressWriter) -> None:
    """Set the platform up and run `job.kind`; the world is left again also after an error."""
    progress("load libraries", done=0, total=1)
    with platform(config, local_rank=placement.local_rank):
        from launcher.jobs.mismatch import measure_mismatch
        from megatron_setup.apply import Setup, apply
        from megatron_setup.distributed import leave_world

        progress("load libraries", done=1, total=1)
        setup = Setup(
            config=config,
            rank=placement.rank,
            world_size=placement.world_size,
            store=open_store(placement, address_file=paths.rendezvous),
            progress=progress,
            check_provider=_refuse_unsupported if config.zero_kl.required else _accept,
        )
        try:
            if config.job.kind is JobKind.convert:
                apply(setup, until="convert checkpoint")
                return
            apply(setup)
            if config.job.kind is JobKind.mismatch:
                measure_mismatch(setup, paths=paths)
        finally:
            leave_world()


def _refuse_unsupported(provider: Any) -> None:
    """The architectures for which zero was never shown, by what Bridge made of the checkpoint."""
    from zero_kl.architectures import check_provider

    check_provider(provider).raise_if_invalid("this model cannot be run with zero_kl.required=true")


def _accept(provider: Any) -> None:
    """An ordinary run measures any model."""
    del provider

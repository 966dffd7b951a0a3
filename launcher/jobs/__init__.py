"""What a rank does once its environment is set. The one place that joins `megatron_setup` and `zero_kl`.

Imported only inside a worker: everything below here may import torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from launcher.paths import AttemptPaths
from launcher.placement import Placement, open_store
from launcher.records import ProgressWriter
from launcher.schema import Backend, JobKind, PlatformKind, RunConfig


@contextmanager
def platform(config: RunConfig) -> Iterator[None]:
    """The platform and the kernels the configuration asks for, in force inside the block."""
    with ExitStack() as stack:
        if config.platform.kind is PlatformKind.cpu:
            from megatron_setup import cpu

            cpu.install()
            if config.zero_kl.backend is Backend.cpu_reference:
                from megatron_setup.cpu.attention import use_core
                from zero_kl.cpu_kernels import attention

                stack.enter_context(use_core(attention))
        from zero_kl.kernels import enabled

        stack.enter_context(enabled(config.zero_kl.backend))
        yield


def run_job(config: RunConfig, *, paths: AttemptPaths, placement: Placement, progress: ProgressWriter) -> None:
    """Set the platform up and run `job.kind`; the world is left again also after an error."""
    progress("load libraries", done=0, total=1)
    with platform(config):
        from launcher.jobs.mismatch import measure_mismatch
        from megatron_setup.apply import Setup, apply
        from megatron_setup.distributed import leave_world

        progress("load libraries", done=1, total=1)
        setup = Setup(
            config=config,
            rank=placement.rank,
            local_rank=placement.local_rank,
            world_size=placement.world_size,
            store=open_store(placement, address_file=paths.rendezvous),
            progress=progress,
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

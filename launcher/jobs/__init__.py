"""What a rank does once its environment is set. The one place that joins `megatron_setup` and `zero_kl`.

Imported only inside a worker: everything below here may import torch.
"""

from __future__ import annotations

import socket
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import yaml

from launcher.outcome import read_outcome
from launcher.paths import AttemptPaths
from launcher.placement import Placement, open_store
from launcher.records import ProgressWriter
from launcher.schema import Backend, JobKind, PlatformKind, RunConfig
from launcher.validate import read_architecture

if TYPE_CHECKING:
    from megatron_setup.apply import Setup


class Job(Protocol):
    """What is done with a model that is set up; its imports are its own."""

    def __call__(self, setup: Setup, *, paths: AttemptPaths) -> None: ...


@contextmanager
def platform(config: RunConfig, *, local_rank: int) -> Generator[None]:
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
            from launcher.jobs.health import take_gpu

            take_gpu(config, local_rank=local_rank)
        from zero_kl.gates import check_node
        from zero_kl.kernels import enabled

        node = check_node(config)
        node.emit_warnings()
        node.raise_if_invalid(f"{socket.gethostname()} is refused")
        stack.enter_context(enabled(config.zero_kl, platform=config.platform.kind))
        yield


def run_job(config: RunConfig, *, paths: AttemptPaths, placement: Placement, progress: ProgressWriter) -> None:
    """Set the platform up and run `job.kind`; the world is left again also after an error."""
    progress("load libraries", done=0, total=1)
    with platform(config, local_rank=placement.local_rank):
        from launcher.jobs.stages import write_stages
        from megatron_setup.apply import Setup, apply, close
        from megatron_setup.distributed import leave_world

        progress("load libraries", done=1, total=1)
        if placement.local_rank == 0 and (config.zero_kl.required or config.zero_kl.backend is not Backend.none):
            _test_node(config, progress=progress)
        setup = Setup(
            config=config,
            rank=placement.rank,
            world_size=placement.world_size,
            store=open_store(placement, address_file=paths.rendezvous),
            progress=progress,
            check_provider=_refuse_unsupported if config.zero_kl.required else _accept,
            saves_folder=paths.saves,
            container_file=paths.megatron,
            resume_from=saves_to_resume(config, paths=paths),
        )
        try:
            if config.job.kind is JobKind.convert:
                apply(setup, until="convert checkpoint")
                return
            if config.job.kind is JobKind.export:
                from megatron_setup.export import export_hf

                apply(setup, until="build model")
                export_hf(setup.model, hf_folder=setup.source.hf_folder, target=paths.exported)
                return
            apply(setup)
            write_stages(setup, path=paths.stages)
            _JOBS[config.job.kind](setup, paths=paths)
            close(setup)
        finally:
            leave_world()


def _test_node(config: RunConfig, *, progress: ProgressWriter) -> None:
    """The node's kernels by their numbers, before the experiment. Raises NodeError naming node and check."""
    from zero_kl.selftest.runner import raise_if_failed, self_test

    progress("test the node", done=0, total=1)
    raise_if_failed(self_test(config, architecture=read_architecture(config.model)))
    progress("test the node", done=1, total=1)


def saves_to_resume(config: RunConfig, *, paths: AttemptPaths) -> tuple[Path, ...]:
    """Folders of this run's own saves to go on from: those of its attempts since the last one that finished, or that
    force=true had repeat the run from its beginning. The latter's own saves are among them: its job may be requeued.
    """
    if config.force:
        return (paths.saves,)
    found: list[Path] = []
    for attempt in reversed(paths.run.attempts()):
        outcome = read_outcome(attempt)
        if outcome is not None and outcome.state == "finished":
            break
        found.append(attempt.saves)
        if _repeats(attempt):
            break
    return tuple(found)


def _repeats(attempt: AttemptPaths) -> bool:
    """force=true was typed for it. Read as plain YAML: an attempt of an older version may lack a key of today's."""
    return attempt.resolved.exists() and yaml.safe_load(attempt.resolved.read_text())["force"] is True


def _mismatch(setup: Setup, *, paths: AttemptPaths) -> None:
    from launcher.jobs.mismatch import measure_mismatch

    measure_mismatch(setup, paths=paths)


def _train(setup: Setup, *, paths: AttemptPaths) -> None:
    from launcher.jobs.train import train

    train(setup, paths=paths)


def _stop(setup: Setup, *, paths: AttemptPaths) -> None:
    """The set-up was the job."""
    del setup, paths


_JOBS: Mapping[JobKind, Job] = {JobKind.mismatch: _mismatch, JobKind.train: _train, JobKind.setup: _stop}


def _refuse_unsupported(provider: Any) -> None:
    """The architectures for which zero was never shown, by what Bridge made of the checkpoint."""
    from zero_kl.architectures import check_provider

    check_provider(provider).raise_if_invalid("this model cannot be run with zero_kl.required=true")


def _accept(provider: Any) -> None:
    """An ordinary run measures any model."""
    del provider

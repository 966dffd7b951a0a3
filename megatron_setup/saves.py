"""Saves of a run: weights, optimizer, schedule and random states, written and read by Megatron-Bridge.

Owns when a save is finished, which one is resumed, and how many are kept.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from megatron.bridge.training.checkpointing import (
    CheckpointLoadContext,
    CheckpointManager,
    CheckpointSaveContext,
    create_checkpoint_manager,
    is_empty_async_queue,
)
from megatron.bridge.training.config import ConfigContainer
from megatron.bridge.training.state import GlobalState, TrainState
from megatron.bridge.training.utils.checkpoint_utils import get_checkpoint_name
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.optimizer import MegatronOptimizer
from megatron.core.transformer.module import MegatronModule

from launcher.errors import ConfigError
from launcher.files import write_json
from launcher.interruption import children_spared
from launcher.patches import applied
from launcher.schema import JobKind, RunConfig
from megatron_setup.fp32_copies import sync_fp32_copies
from megatron_setup.iterations import COMPLETE, NotACheckpointError, complete_saves, find_save, number_of
from megatron_setup.late_gather import parameters_gathered
from megatron_setup.weights import check_files, explained, read_metadata
from megatron_setup.writer import PATCHES


class Saves:
    """Bridge's checkpoint manager and the state it saves, for one run on this rank. `close` must be called."""

    def __init__(self, container: ConfigContainer, *, most_recent_k: int | None) -> None:
        """Starts the background writer where `checkpoint.async_save` is set.

        The newest `most_recent_k` saves are kept (null, -1: all). Not by Bridge: it removes the old one before the new
        one is marked.
        """
        self._checkpoint: Any = container.checkpoint
        self.state = GlobalState()
        self.state.cfg = container
        self.state.train_state = TrainState()
        if container.checkpoint.async_save:  # the CPU platform's plain queue could not be sent to the writer
            filesystem_async._results_queue = None  # pyright: ignore[reportPrivateUsage]
        with applied(PATCHES if torch.cuda.is_available() else ()), children_spared():  # the CPU platform has its own
            self.state.initialize_async_checkpoint_worker()
        self._manager: CheckpointManager = create_checkpoint_manager(container.checkpoint)
        self._kept = -1 if most_recent_k is None else most_recent_k
        self._unmarked: list[int] = []
        self._saved: int | None = None

    @property
    def step(self) -> int:
        """Optimizer steps that the weights have seen."""
        return self.state.train_state.step

    @property
    def is_saved(self) -> bool:
        """This step's save was made, or is being written."""
        return self._saved == self.step

    def load(self, *, model: list[MegatronModule], optimizer: MegatronOptimizer | None, scheduler: Any) -> None:
        """Load the iteration that the container names into all three; `step` is then that iteration's.

        Raises ConfigError naming folder and weight where the save does not fit the model.
        """
        checkpoint = self._checkpoint
        iteration = Path(checkpoint.load)
        check_files(iteration, metadata=read_metadata(iteration))
        with explained(iteration):
            self._manager.load(
                CheckpointLoadContext(state=self.state, model=model, optimizer=optimizer, opt_param_scheduler=scheduler)
            )
        if optimizer is not None and not checkpoint.load_optim:
            sync_fp32_copies(optimizer)

    def advance(self, *, num_samples: int) -> None:
        """Count one optimizer step over `num_samples` sequences."""
        self.state.train_state.step += 1
        self.state.train_state.consumed_train_samples += num_samples

    def save(self, *, model: list[MegatronModule], optimizer: MegatronOptimizer | None, scheduler: Any) -> None:
        """Write an iteration named after `step`. In the background with `checkpoint.async_save`: `poll` finishes it."""
        context = CheckpointSaveContext(
            state=self.state,
            model=model,
            optimizer=optimizer,
            opt_param_scheduler=scheduler,
            num_floating_point_operations_so_far=0,
        )
        if torch.distributed.get_rank() == 0:
            shutil.rmtree(self._folder(self.step), ignore_errors=True)  # a half-written one, of before a requeue
        torch.distributed.barrier()  # no rank writes into a folder that is being removed
        with parameters_gathered(model), children_spared():
            self._manager.save(context, None)
        self._saved = self.step
        self._unmarked.append(self.step)
        self.poll()

    def poll(self) -> None:
        """Finish a save whose files are written: mark it, remove older ones. Called by all ranks after every step."""
        self._manager.finalize_async_saves(self.state)
        if self._unmarked and is_empty_async_queue(self.state):
            if torch.distributed.get_rank() == 0:
                self._mark()
            self._unmarked.clear()

    def close(self) -> None:
        """Wait for the last save and end the background writer."""
        self._manager.finalize_async_saves(self.state, blocking=True, terminate=True)
        self.poll()

    def _mark(self) -> None:
        for step in self._unmarked:
            write_json(self._folder(step) / COMPLETE, data={"step": step})
        if self._kept > 0:
            for old in complete_saves(self._folder(self.step).parent)[: -self._kept]:
                shutil.rmtree(old)

    def _folder(self, step: int) -> Path:
        return Path(get_checkpoint_name(self._checkpoint.save, step))


def save_to_resume(config: RunConfig, *, roots: Sequence[Path]) -> Path | None:
    """The newest finished iteration of this run's `roots` and of `checkpoint.load`; None where there is none.

    Raises ConfigError where `checkpoint.load` has no save, and where the save has more steps than the run takes.
    """
    asked = None if config.checkpoint.load is None else Path(config.checkpoint.load)
    try:
        found = find_save(roots, asked=asked)
    except NotACheckpointError as error:
        raise ConfigError(f"error: checkpoint.load is {error.found}, {error.wanted} is needed") from error
    steps, takes_steps = config.job.num_steps, config.job.kind in (JobKind.train, JobKind.mismatch)
    done = None if found is None else number_of(found)
    if done is not None and takes_steps and done > steps:
        raise ConfigError(f"error: job.num_steps is {steps}, the save in {found} has more\nhint: job.num_steps={done}")
    return found

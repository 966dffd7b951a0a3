"""Saves of a run: weights, optimizer, schedule and random states, written and read by Megatron-Bridge.

Owns when a save is finished and that no writer outlives the rank. Which folder is trusted is `model_source`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from megatron.bridge.training.checkpointing import (
    CheckpointLoadContext,
    CheckpointManager,
    CheckpointSaveContext,
    create_checkpoint_manager,
)
from megatron.bridge.training.config import ConfigContainer
from megatron.bridge.training.state import GlobalState, TrainState
from megatron.core.optimizer import MegatronOptimizer
from megatron.core.transformer.module import MegatronModule

from launcher.errors import ConfigError
from launcher.schema import RunConfig
from megatron_setup.build import explained
from megatron_setup.iterations import NotACheckpointError, newest_save
from megatron_setup.late_gather import parameters_gathered


class Saves:
    """Bridge's checkpoint manager and the state it saves, for one run on this rank. `close` must be called."""

    def __init__(self, container: ConfigContainer) -> None:
        """Starts the background writer where `checkpoint.async_save` is set."""
        self.state = GlobalState()
        self.state.cfg = container
        self.state.train_state = TrainState()
        self.state.initialize_async_checkpoint_worker()
        self._manager: CheckpointManager = create_checkpoint_manager(container.checkpoint)

    @property
    def step(self) -> int:
        """Optimizer steps that the weights have seen."""
        return self.state.train_state.step

    def load(self, *, model: list[MegatronModule], optimizer: MegatronOptimizer | None, scheduler: Any) -> None:
        """Load the iteration that the container names into all three; `step` is then that iteration's.

        Raises ConfigError naming folder and weight where the save does not fit the model.
        """
        checkpoint = self.state.cfg.checkpoint
        with explained(Path(checkpoint.load)):
            self._manager.load(
                CheckpointLoadContext(state=self.state, model=model, optimizer=optimizer, opt_param_scheduler=scheduler)
            )

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
        with parameters_gathered(model):
            self._manager.save(context, None)

    def poll(self) -> None:
        """Finish a background save whose files are written. Called by all ranks after every step."""
        self._manager.finalize_async_saves(self.state)

    def close(self) -> None:
        """Wait for the last save and end the background writer."""
        self._manager.finalize_async_saves(self.state, blocking=True, terminate=True)


def save_to_resume(config: RunConfig, *, roots: Sequence[Path]) -> Path | None:
    """The newest iteration in any of `roots`; None where there is none and `checkpoint.load` asked for none.

    Raises ConfigError for a folder whose tracker cannot be believed, and for a `checkpoint.load` without a save.
    """
    try:
        found = [save.path for root in roots if (save := newest_save(root)) is not None]
    except NotACheckpointError as error:
        raise ConfigError(f"error: saves cannot be resumed: {error.found}, {error.wanted} is needed") from error
    if not found and config.checkpoint.load is not None:
        raise ConfigError(
            f"error: checkpoint.load is {config.checkpoint.load}, which holds no save that was written to its end\n"
            "hint: checkpoint.load=null"
        )
    return max(found, key=lambda path: int(path.name.removeprefix("iter_")), default=None)

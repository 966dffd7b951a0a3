"""Megatron-Bridge's ConfigContainer of the run: what Bridge's checkpoint functions read, and what lies beside a run.

Owns the container. Its values come from the tables; nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from megatron.bridge.peft.base import PEFT
from megatron.bridge.training.config import (
    CheckpointConfig,
    ConfigContainer,
    DistributedDataParallelConfig,
    DistributedInitConfig,
    LoggerConfig,
    OptimizerConfig,
    RNGConfig,
    SchedulerConfig,
    TrainingConfig,
)
from megatron.bridge.training.tokenizers.config import TokenizerConfig

from launcher.errors import ConfigError
from launcher.schema import RunConfig
from megatron_setup.checkpoint import checkpoint_fields
from megatron_setup.distributed import backend_of
from megatron_setup.optimizer import batch_size, ddp_fields, optimizer_fields
from megatron_setup.performance import rng_fields
from megatron_setup.provider import upstream_value
from megatron_setup.scheduler import scheduler_fields


def build_megatron_config(
    config: RunConfig, *, provider: Any, hf_folder: Path, saves: Path, resume: Path | None, peft: PEFT | None
) -> ConfigContainer:
    """The container, finalized, with the finalized `provider` as its model.

    `saves` is where iterations are written (with `checkpoint.save`), `resume` the iteration's folder that is loaded.
    `ConfigContainer.validate` is not called: it would finalize the model a second time and derive what our rules have
    checked; the parts are finalized one by one, then the schedules' lengths are set as it sets them.
    Raises ConfigError with upstream's words where a part is refused.
    """
    container = ConfigContainer(
        model=provider,
        train=TrainingConfig(
            train_iters=max(config.job.num_steps, 1),  # Bridge refuses a schedule of no steps
            micro_batch_size=config.performance.micro_batch_size,
            global_batch_size=batch_size(config),
        ),
        optimizer=OptimizerConfig(**_upstream(optimizer_fields(config))),
        ddp=DistributedDataParallelConfig(**_upstream(ddp_fields(config))),
        scheduler=SchedulerConfig(**_upstream(scheduler_fields(config))),
        checkpoint=CheckpointConfig(
            save=str(saves) if config.checkpoint.save else None,
            load=None if resume is None else str(resume),
            save_tokenizer_assets=False,  # the tokenizer is the Hugging Face folder's
            hf_source_path=str(hf_folder),
            **_upstream(checkpoint_fields(config)),
        ),
        tokenizer=TokenizerConfig(tokenizer_type="HuggingFaceTokenizer", tokenizer_model=str(hf_folder)),
        logger=LoggerConfig(),
        rng=RNGConfig(seed=config.job.seed, **rng_fields(config)),
        dist=DistributedInitConfig(distributed_backend=backend_of(config)),
        dataset=None,  # pyright: ignore[reportArgumentType]  the jobs bring their own sequences
        peft=peft,
    )
    _finalize(container)
    return container


def _upstream(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: upstream_value(value) for name, value in fields.items()}


def _finalize(container: ConfigContainer) -> None:
    parts = (container.optimizer, container.ddp, container.train, container.scheduler, container.checkpoint)
    try:
        for part in parts:
            part.finalize()
        container._calculate_scheduler_steps()
    except (AssertionError, ValueError) as error:
        raise ConfigError(f"error: Megatron-Bridge refuses this configuration\n  why:    {error}") from error

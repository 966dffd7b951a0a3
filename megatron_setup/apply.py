"""The one ordered way from a configuration to a running model. Each step is timed and shown."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch
from megatron.core.optimizer import MegatronOptimizer
from megatron.core.transformer.module import MegatronModule
from torch.distributed import Store

from launcher.schema import RunConfig
from megatron_setup.build import build_model, build_optimizer, build_provider
from megatron_setup.convert import convert_with_bridge
from megatron_setup.distributed import join_world, world_of_one
from megatron_setup.hf_folder import ensure_hf_folder, hf_folder_of
from megatron_setup.model_import import converted_folder, import_once, newest_iteration
from megatron_setup.performance import rng_fields

_CONVERTED = "converted"
_CONVERSION_LIMIT = timedelta(hours=6)


class ReportProgress(Protocol):
    """Where progress goes."""

    def __call__(self, stage: str, *, done: int, total: int, unit: str = "") -> None: ...


@dataclass
class Setup:
    """What the steps have made so far; a later step finds what an earlier one left. `seconds` is per step."""

    config: RunConfig
    rank: int
    world_size: int
    store: Store
    progress: ReportProgress
    check_provider: Callable[[Any], None]
    hf_folder: Path = Path()
    iteration: Path = Path()
    provider: Any = None
    model: list[MegatronModule] = field(default_factory=list)
    optimizer: MegatronOptimizer | None = None
    seconds: dict[str, float] = field(default_factory=dict)


def convert_checkpoint(setup: Setup) -> None:
    """Rank 0 makes the Hugging Face folder and converts it, alone in a world of one; the others wait for it."""
    config = setup.config
    if setup.rank == 0:

        def convert(source: Path, target: Path) -> None:
            with world_of_one(config):
                convert_with_bridge(config, source=source, target=target)

        import_once(config, hf_folder=ensure_hf_folder(config), convert=convert)
        setup.store.set(_CONVERTED, "yes")
    setup.store.wait([_CONVERTED], _CONVERSION_LIMIT)
    setup.hf_folder = hf_folder_of(config)
    setup.iteration = newest_iteration(converted_folder(config, hf_folder=setup.hf_folder))


def join(setup: Setup) -> None:
    """All ranks meet."""
    join_world(setup.config, store=setup.store, rank=setup.rank, world_size=setup.world_size)


def configure(setup: Setup) -> None:
    """The provider, finalized and read back; then Megatron's groups, random state and deterministic kernels."""
    setup.provider = build_provider(setup.config, iteration=setup.iteration)
    setup.check_provider(setup.provider)
    setup.provider.initialize_model_parallel(seed=setup.config.job.seed, seed_kwargs=rng_fields(setup.config))
    torch.use_deterministic_algorithms(setup.config.performance.deterministic_mode)


def build(setup: Setup) -> None:
    """The wrapped model with its weights."""
    setup.model = build_model(setup.config, provider=setup.provider, iteration=setup.iteration)


def optimize(setup: Setup) -> None:
    """The optimizer, after the weights: its fp32 copies are taken from them."""
    setup.optimizer = build_optimizer(setup.config, model=setup.model)


STEPS: tuple[tuple[str, Callable[[Setup], None]], ...] = (
    ("convert checkpoint", convert_checkpoint),
    ("join ranks", join),
    ("configure model", configure),
    ("build model", build),
    ("build optimizer", optimize),
)


def apply(setup: Setup, *, until: str | None = None) -> None:
    """Run the steps in order, the last one being `until`; fills `setup` in."""
    for name, step in STEPS:
        setup.progress(name, done=0, total=1)
        started = time.perf_counter()
        step(setup)
        setup.seconds[name] = time.perf_counter() - started
        setup.progress(name, done=1, total=1)
        if name == until:
            return

"""The one ordered way from a configuration to a running model. Each step is timed, weighed and shown."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch
from megatron.bridge.training.config import ConfigContainer
from megatron.core import parallel_state
from megatron.core.num_microbatches_calculator import init_num_microbatches_calculator
from megatron.core.optimizer import MegatronOptimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.transformer.module import MegatronModule
from torch.distributed import Store

from launcher.schema import JobKind, RunConfig
from megatron_setup.build import PreWrapHook, build_model, build_optimizer, build_provider, finalize_provider
from megatron_setup.convert import convert_with_bridge
from megatron_setup.distributed import join_world, world_of_one
from megatron_setup.draft_model import draft_hook
from megatron_setup.finalize import Finished, finish
from megatron_setup.inference_model import build_inference_model
from megatron_setup.links import check_links
from megatron_setup.lora import bridge_lora, lora_hook
from megatron_setup.megatron_config import build_megatron_config
from megatron_setup.model_import import import_once
from megatron_setup.model_source import ModelSource, resolve_source
from megatron_setup.optimizer import batch_size
from megatron_setup.performance import rng_fields
from megatron_setup.reference import ReferenceState, reference_state
from megatron_setup.saves import Saves, save_to_resume
from megatron_setup.second_model import has_second_model
from megatron_setup.stages import Stage, weighed
from megatron_setup.value import value_run_config
from megatron_setup.value_model import value_head_hook

_CONVERTED = "converted"
_VALUE = "value"
_CONVERSION_LIMIT = timedelta(hours=6)


class ReportProgress(Protocol):
    """Where progress goes."""

    def __call__(self, stage: str, *, done: int, total: int, unit: str = "") -> None: ...


@dataclass
class Setup:
    """What the steps have made so far: a step finds what an earlier one left, and to read what none has set fails."""

    config: RunConfig
    rank: int
    world_size: int
    store: Store
    progress: ReportProgress
    check_provider: Callable[[Any], None]
    saves_folder: Path
    """Where iterations are saved."""

    container_file: Path
    """Where Bridge's configuration of the run is written."""

    resume_from: tuple[Path, ...] = ()
    """Folders of saves to go on from: the newest iteration in any of them."""

    hooks: tuple[PreWrapHook, ...] = ()
    """What is done to the model beside its configuration, after its weights are loaded."""

    source: ModelSource = field(init=False)
    """The checkpoint to start from."""

    resume: Path | None = field(init=False)
    """The save to go on from."""

    provider: Any = field(init=False)
    unfinished_provider: Any = field(init=False)
    """The provider before `finalize()`, where generation has a model of its own; else None."""

    container: ConfigContainer = field(init=False)
    model: list[MegatronModule] = field(init=False)
    optimizer: MegatronOptimizer = field(init=False)
    scheduler: OptimizerParamScheduler = field(init=False)
    saves: Saves = field(init=False)
    inference_model: MegatronModule | None = field(init=False, default=None)
    """The model that generates where it cannot be training's; its weights come by `refit`."""

    reference: ReferenceState | None = field(init=False, default=None)
    """With `model.reference_model`: the policy as it was before the first step."""

    value: Setup | None = field(init=False, default=None)
    """With `model.value.enabled`: the value model, as far as it is a model of its own."""

    finished: Finished = field(init=False)
    stages: dict[str, Stage] = field(init=False, default_factory=dict)
    """What each step took on this rank, by its name."""


def convert_checkpoint(setup: Setup) -> None:
    """Rank 0 makes the Hugging Face folder and converts it, alone in a world of one; the others wait for it."""
    config = setup.config
    if setup.rank == 0:
        for each in (config, value_run_config(config)) if config.model.value.enabled else (config,):
            _import(each)
        setup.store.set(_CONVERTED, "yes")
    setup.store.wait([_CONVERTED], _CONVERSION_LIMIT)
    setup.source = resolve_source(config)
    setup.resume = save_to_resume(config, roots=setup.resume_from)


def _import(config: RunConfig) -> None:
    def convert(source: Path, target: Path) -> None:
        with world_of_one(config):
            convert_with_bridge(config, source=source, target=target)

    import_once(config, convert=convert)


def join(setup: Setup) -> None:
    """All ranks meet, and one all-reduce shows that they reach each other. Raises NodeError."""
    join_world(setup.config, store=setup.store, rank=setup.rank, world_size=setup.world_size)
    check_links(setup.config, store=setup.store, rank=setup.rank, world_size=setup.world_size)


def configure(setup: Setup) -> None:
    """The provider, finalized and read back; Megatron's groups and random state; Bridge's container of it all."""
    config = setup.config
    setup.provider = build_provider(config, source=setup.source)
    setup.unfinished_provider = copy.deepcopy(setup.provider) if has_second_model(config) else None
    finalize_provider(config, provider=setup.provider)
    setup.check_provider(setup.provider)
    # Forced: a conversion in this process has left a random state of another kind, which would be kept.
    seeding = {**rng_fields(config), "force_reset_rng": True}
    setup.provider.initialize_model_parallel(seed=config.job.seed, seed_kwargs=seeding)
    torch.use_deterministic_algorithms(config.performance.deterministic_mode)
    replicas = parallel_state.get_data_parallel_world_size()
    size = config.performance.micro_batch_size
    # Bridge's load tells the calculator how many samples were seen; the jobs count their own micro-batches.
    init_num_microbatches_calculator(setup.rank, None, size * replicas, size, replicas)
    _contain(setup)


def _contain(setup: Setup) -> None:
    setup.container = build_megatron_config(
        setup.config,
        provider=setup.provider,
        hf_folder=setup.source.hf_folder,
        saves=setup.saves_folder,
        resume=setup.resume,
        peft=bridge_lora(setup.config),
    )
    if setup.rank == 0:
        setup.container.to_yaml(str(setup.container_file))


def build(setup: Setup) -> None:
    """The wrapped model, with the weights to start from."""
    config = setup.config
    hooks = list(setup.hooks)
    if config.model.draft.enabled:
        hooks.append(draft_hook(config, provider=setup.provider))
    if config.model.peft.enabled:
        hooks.append(lora_hook(config))  # last: it freezes what is there
    iteration = _weights_to_start_from(setup)
    setup.model = build_model(config, container=setup.container, iteration=iteration, hooks=hooks)
    if config.model.reference_model:
        setup.reference = reference_state(setup.model)


def _weights_to_start_from(setup: Setup) -> Path | None:
    """None where `resume` will bring all weights; an export stops before and takes the save's weights alone."""
    model = setup.config.model
    if setup.resume is None or model.peft.enabled or model.reference_model:
        return setup.source.iteration
    return setup.resume if setup.config.job.kind is JobKind.export else None


def optimize(setup: Setup) -> None:
    """The optimizer, after the weights: its fp32 copies are taken from them."""
    setup.optimizer, setup.scheduler = build_optimizer(setup.config, container=setup.container, model=setup.model)


def resume(setup: Setup) -> None:
    """Weights, optimizer, schedule and random states of the newest save, where there is one."""
    setup.saves = Saves(setup.container, most_recent_k=_saves_kept(setup))
    if setup.resume is not None:
        setup.saves.load(model=setup.model, optimizer=setup.optimizer, scheduler=setup.scheduler)
        setup.progress(f"resumed after step {setup.saves.step}", done=1, total=1)


def _saves_kept(setup: Setup) -> int | None:
    """One more of the value model's, which is saved before the policy is: the policy's newest must find its partner."""
    kept = setup.config.checkpoint.most_recent_k
    return kept + 1 if kept is not None and kept > 0 and setup.saves_folder.name == _VALUE else kept


def build_value_model(setup: Setup) -> None:
    """The value model beside the policy, on the same groups: its configuration, weights, optimizer and save."""
    if not setup.config.model.value.enabled:
        return
    value = Setup(
        config=value_run_config(setup.config),
        rank=setup.rank,
        world_size=setup.world_size,
        store=setup.store,
        progress=setup.progress,
        check_provider=setup.check_provider,
        saves_folder=setup.saves_folder / _VALUE,
        container_file=setup.container_file.with_stem(f"{setup.container_file.stem}_{_VALUE}"),
        hooks=(value_head_hook(setup.config),),
    )
    value.source = resolve_source(value.config)
    # The step of the policy's save, no other: the value model's is written first and kept one longer (`finish_step`).
    value.resume = None if setup.resume is None else setup.resume.parent / _VALUE / setup.resume.name
    value.provider = build_provider(value.config, source=value.source)
    finalize_provider(value.config, provider=value.provider)
    _contain(value)
    for step in (build, optimize, resume):
        step(value)
    setup.value = value


def build_second_model(setup: Setup) -> None:
    """Generation's own model, where its layout is not training's; no weights in it yet."""
    if setup.unfinished_provider is not None:
        setup.inference_model = build_inference_model(setup.config, snapshot=setup.unfinished_provider)


def complete(setup: Setup) -> None:
    """What the jobs need beside model and optimizer."""
    setup.finished = finish(setup.provider, hf_folder=setup.source.hf_folder)


STEPS: tuple[tuple[str, Callable[[Setup], None]], ...] = (
    ("convert checkpoint", convert_checkpoint),
    ("join ranks", join),
    ("configure model", configure),
    ("build model", build),
    ("build optimizer", optimize),
    ("resume", resume),
    ("build value model", build_value_model),
    ("build generation's model", build_second_model),
    ("finalize", complete),
)


def apply(setup: Setup, *, until: str | None = None) -> None:
    """Run the steps in order, the last one being `until`; fills `setup` in."""
    for name, step in STEPS:
        setup.progress(name, done=0, total=1)
        with weighed() as stage:
            step(setup)
        setup.stages[name] = stage()
        setup.progress(name, done=1, total=1)
        if name == until:
            return


def finish_step(setup: Setup) -> None:
    """After an optimizer step, on all ranks: the schedule goes on, and a save is made where one is due.

    The value model's first: a run that is killed between the two goes on at the step before, which both have.
    """
    if setup.value is not None:
        finish_step(setup.value)
    checkpoint, saves = setup.config.checkpoint, setup.saves
    setup.scheduler.step(increment=batch_size(setup.config))
    saves.advance(num_samples=batch_size(setup.config))
    saves.poll()
    is_due = checkpoint.save_interval is not None and saves.step % checkpoint.save_interval == 0
    if is_due or saves.step == setup.config.job.num_steps:
        _save(setup)


def _save(setup: Setup) -> None:
    """Save this step once, where saves are made at all."""
    if setup.config.checkpoint.save and not setup.saves.is_saved:
        setup.saves.save(model=setup.model, optimizer=setup.optimizer, scheduler=setup.scheduler)


def end_early(setup: Setup) -> None:
    """Save the step just finished, whatever the schedule, and close; on all ranks. The value model's first, as ever."""
    for each in (setup.value, setup):
        if each is not None:
            _save(each)
    close(setup)


def close(setup: Setup) -> None:
    """Wait for the last saves and end their writers."""
    if setup.value is not None:
        close(setup.value)
    setup.saves.close()

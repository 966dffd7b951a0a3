"""Saving and resuming. Owns the arguments of Bridge's CheckpointConfig and the rules about them; the saves themselves
are made by `megatron_setup.saves`. Torch-free.
"""

from pathlib import Path
from typing import Any

from launcher.requirement import Between, Check, Equals, Finding, OneOf, Requirement, Subject, show
from launcher.schema import JobKind, RunConfig
from launcher.schema.checkpoint import AsyncStrategy
from megatron_setup.iterations import NotACheckpointError, find_save
from megatron_setup.rows import SwitchedOff, given, unread, where


def _keeps_one(subject: Subject) -> Finding | None:
    found = subject.config.checkpoint.most_recent_k
    if found is None or found == -1 or found >= 1:
        return None
    return Finding(found=show(found), wanted="-1 (all), or at least 1", hints=("checkpoint.most_recent_k=1",))


def _holds_a_save(subject: Subject) -> Finding | None:
    asked = subject.config.checkpoint.load
    if asked is None:
        return None
    try:
        find_save((), asked=Path(asked))
    except NotACheckpointError as error:
        return Finding(found=error.found, wanted=error.wanted, hints=("checkpoint.load=null",))
    return None


KEEPS_ONE = Check("-1, or at least 1", _keeps_one)

_BRIDGE = "megatron-bridge 0.6.2 training/config.py, CheckpointConfig.finalize"

_FORWARDED = (
    "save_interval",
    "save_optim",
    "save_rng",
    "load_optim",
    "load_rng",
    "dist_ckpt_strictness",
    "async_save",
    "async_strategy",
    "use_persistent_ckpt_worker",
    "ckpt_assume_constant_structure",
    "fully_parallel_save",
    "fully_parallel_load",
    "ckpt_fully_parallel_save_process_group",
    "ckpt_fully_parallel_load_process_group",
    "ckpt_fully_parallel_load_exchange_algo",
    "storage_writers_per_rank",
    "also_save_hf_checkpoint",
)


def checkpoint_fields(config: RunConfig) -> dict[str, Any]:
    """Arguments of Bridge's CheckpointConfig that a person set; for the others Bridge's defaults hold.

    With FP8 weights and no optimizer state to come, the fp32 main parameters are read from the checkpoint: made from
    the FP8 weights they would carry FP8's rounding.
    """
    main_params = config.precision.fp8_param is True and config.checkpoint.load_optim is False
    extra = {"load_main_params_from_ckpt": True} if main_params else {}
    return {**given(config.checkpoint, names=_FORWARDED), **extra}


_WHO = "Megatron-Bridge"
UNSAVED = where(_WHO, text="checkpoint.save is false", test=lambda c: not c.checkpoint.save)
UNUSED = where(
    _WHO,
    text="checkpoint.save is false and checkpoint.load is null",
    test=lambda c: not c.checkpoint.save and c.checkpoint.load is None,
)
WITHOUT_STEPS = where(
    "the job",
    text="the job takes no steps",
    test=lambda c: c.job.kind not in (JobKind.mismatch, JobKind.train),
)
IN_FOREGROUND = where(_WHO, text="checkpoint.async_save is false", test=lambda c: not c.checkpoint.async_save)
IN_BACKGROUND = where(_WHO, text="checkpoint.async_save is true", test=lambda c: c.checkpoint.async_save)
SAVED_IN_BACKGROUND = where(
    _WHO,
    text="checkpoint.save and checkpoint.async_save are true",
    test=lambda c: c.checkpoint.save and c.checkpoint.async_save,
)
TWO_IN_BACKGROUND = where(
    _WHO,
    text="checkpoint.async_save and model.value.enabled are true",
    test=lambda c: c.checkpoint.async_save and c.model.value.enabled,
)
COLOCATED_IN_BACKGROUND = where(
    "generation",
    text="checkpoint.async_save is true and generation is colocated",
    test=lambda c: c.checkpoint.async_save and c.generation.colocated,
)

_NOTHING_SAVED = "nothing is saved while checkpoint.save is false; checkpoint.save=true saves"

_SAVE_READS = (
    "save_interval most_recent_k save_optim save_rng fully_parallel_save ckpt_fully_parallel_save_process_group "
    "storage_writers_per_rank"
)
_LOAD_READS = (
    "load_optim load_rng dist_ckpt_strictness fully_parallel_load ckpt_fully_parallel_load_process_group "
    "ckpt_fully_parallel_load_exchange_algo"
)


def _keys(first: int, *, names: str) -> dict[str, str]:
    return {f"CK{first + i:03d}": f"checkpoint.{name}" for i, name in enumerate(names.split())}


REQUIREMENTS: tuple[Requirement, ...] = (
    Requirement(
        code="CK001",
        key="checkpoint.async_save",
        want=Equals(False),
        when=UNSAVED,
        why="there is no path to save to",
        source=_BRIDGE,
        reads=("checkpoint.save",),
    ),
    Requirement(
        code="CK032",
        key="checkpoint.async_save",
        want=SwitchedOff(
            (False,), followers={"checkpoint.async_strategy": None, "checkpoint.use_persistent_ckpt_worker": None}
        ),
        when=TWO_IN_BACKGROUND,
        why="the background writers of policy and value model share one queue of results, and saves made by both could "
        "not be loaded (KeyError of a MetadataIndex)",
        source="megatron-core 0.19.2 dist_checkpointing/strategies/filesystem_async.py, _results_queue; seen on the "
        "CPU platform",
        reads=("model.value.enabled",),
    ),
    Requirement(
        code="CK002",
        key="checkpoint.use_persistent_ckpt_worker",
        want=OneOf((None, True)),
        when=IN_BACKGROUND,
        why="the background writer lives between saves",
        source=_BRIDGE,
        reads=("checkpoint.async_save",),
    ),
    Requirement(
        code="CK003",
        key="checkpoint.ckpt_assume_constant_structure",
        want=Equals(False),
        when=COLOCATED_IN_BACKGROUND,
        why="the background writer reuses the plan and the buffers of the first save; colocated generation moves "
        "weights in between, and older ones are written",
        source="megatron-core 0.19.2 dist_checkpointing/strategies/torch.py, use_cached_data_structure",
        reads=("checkpoint.async_save", "generation.colocated"),
    ),
    Requirement(
        code="CK004",
        key="checkpoint.save",
        want=Equals(False),
        when=WITHOUT_STEPS,
        why="there is nothing to save: the weights are the checkpoint's",
        source="launcher/jobs/__init__.py",
        reads=("job.kind",),
    ),
    Requirement(
        code="CK005",
        key="checkpoint.async_strategy",
        want=Equals(AsyncStrategy.mcore),
        when=SAVED_IN_BACKGROUND,
        why="Bridge's default, nvrx, needs nvidia-resiliency-ext, which is no dependency of this package: 0.6.0 has "
        "wheels for glibc 2.39 and newer only",
        source="megatron-core 0.19.2 dist_checkpointing/strategies/torch.py, get_async_strategy",
        reads=("checkpoint.async_save",),
    ),
    *(
        Requirement(
            code=code,
            key=f"checkpoint.{name}",
            want=want,
            why=why,
            source="megatron-bridge 0.6.2 training/checkpointing.py",
        )
        for code, name, want, why in (
            ("CK006", "save_interval", Between(low=1), "it counts optimizer steps"),
            ("CK007", "storage_writers_per_rank", Between(low=1), "it counts writers"),
            ("CK008", "most_recent_k", KEEPS_ONE, "with 0 Bridge removes the save it has just written"),
        )
    ),
    Requirement(
        code="CK009",
        key="checkpoint.load",
        want=Check("a folder with a finished save", _holds_a_save),
        why="a folder without one fails on the node, after the GPUs were given",
        source="megatron_setup/iterations.py",
    ),
    *unread(_keys(10, names=_SAVE_READS), when=UNSAVED, why=_NOTHING_SAVED, source=_BRIDGE, reads=("checkpoint.save",)),
    *unread(
        _keys(17, names="ckpt_assume_constant_structure also_save_hf_checkpoint"),
        off=False,
        when=UNSAVED,
        why=_NOTHING_SAVED,
        source=_BRIDGE,
        reads=("checkpoint.save",),
    ),
    *unread(
        _keys(20, names=_LOAD_READS),
        when=UNUSED,
        why="nothing is resumed",
        source=_BRIDGE,
        reads=("checkpoint.save", "checkpoint.load"),
    ),
    *unread(
        _keys(30, names="async_strategy use_persistent_ckpt_worker"),
        when=IN_FOREGROUND,
        why="nothing is written in the background",
        source=_BRIDGE,
        reads=("checkpoint.async_save",),
    ),
)

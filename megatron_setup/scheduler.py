"""Learning rate and weight decay over steps. Owns the arguments of Bridge's SchedulerConfig and the rules about them.

Torch-free.
"""

import math
from typing import Any

from launcher.requirement import Between, Check, Equals, Finding, Requirement, Subject, show
from launcher.schema import RunConfig
from launcher.schema.optimizer import LrDecayStyle, WeightDecayStyle
from megatron_setup.rows import given, unread, where

_CORE = "megatron-core 0.19.2 optimizer_param_scheduler.py"
_BRIDGE = "megatron-bridge 0.6.2 training/config.py, _calculate_scheduler_steps"
_SECTION = "optimizer.scheduler"

_FORWARDED = (
    "lr_decay_style",
    "lr_decay_iters",
    "lr_warmup_iters",
    "lr_warmup_init",
    "lr_wsd_decay_style",
    "lr_wsd_decay_iters",
    "weight_decay_incr_style",
)


def scheduler_fields(config: RunConfig) -> dict[str, Any]:
    """Arguments of Bridge's SchedulerConfig. It knows no weight decay but its own, so the optimizer's is both ends."""
    start, end = _weight_decay(config)
    return {
        "override_opt_param_scheduler": True,  # a save brings the position in the schedule, the run the schedule
        "start_weight_decay": start,
        "end_weight_decay": end,
        **given(config.optimizer.scheduler, names=_FORWARDED),
    }


def _weight_decay(config: RunConfig) -> tuple[float, float]:
    scheduler, decay = config.optimizer.scheduler, config.optimizer.weight_decay
    start, end = scheduler.start_weight_decay, scheduler.end_weight_decay
    return decay if start is None else start, decay if end is None else end


def decay_steps(config: RunConfig) -> int:
    """Optimizer steps from the first to the end of the decay."""
    asked = config.optimizer.scheduler.lr_decay_iters
    return max(config.job.num_steps if asked is None else asked, 1)  # fewer are refused by a row of their own


def _warms_up_before_the_end(subject: Subject) -> Finding | None:
    warmup, steps = subject.config.optimizer.scheduler.lr_warmup_iters or 0, decay_steps(subject.config)
    if warmup < steps:
        return None
    return Finding(
        found=show(warmup),
        wanted=f"below {steps}",
        arithmetic=f"{warmup} of {steps} steps to the end of the decay",
        hints=(f"{_SECTION}.lr_warmup_iters={steps - 1}",),
    )


def _at_most_lr(key: str) -> Check:
    def test(subject: Subject) -> Finding | None:
        found, lr = subject.value(key), subject.config.optimizer.lr
        if found is None or math.isnan(lr) or found <= max(lr, 0.0):  # such a rate has its own row
            return None
        return Finding(found=show(found), wanted=f"at most optimizer.lr = {show(lr)}", hints=(f"{key}={show(lr)}",))

    return Check("at most optimizer.lr", test)


def _grows(subject: Subject) -> Finding | None:
    start, end = _weight_decay(subject.config)
    if end >= start:
        return None
    return Finding(
        found=show(end),
        wanted=f"at least the first one, {show(start)}",
        hints=(f"{_SECTION}.end_weight_decay={start}",),
    )


_MCORE = "megatron-core"
CONSTANT = where(
    _MCORE,
    text="lr_decay_style is constant",
    test=lambda c: c.optimizer.scheduler.lr_decay_style is LrDecayStyle.constant,
)
NOT_WSD = where(
    _MCORE,
    text="lr_decay_style is not WSD",
    test=lambda c: c.optimizer.scheduler.lr_decay_style is not LrDecayStyle.WSD,
)
NO_WARMUP = where(_MCORE, text="lr_warmup_iters is 0", test=lambda c: not c.optimizer.scheduler.lr_warmup_iters)
CONSTANT_DECAY = where(
    _MCORE,
    text="weight_decay_incr_style is constant",
    test=lambda c: c.optimizer.scheduler.weight_decay_incr_style in (None, WeightDecayStyle.constant),
)

ROWS: tuple[Requirement, ...] = (
    *(
        Requirement(
            code=code, key=f"{_SECTION}.{name}", want=Between(low=low), why="it counts optimizer steps", source=_CORE
        )
        for code, name, low in (
            ("OP060", "lr_decay_iters", 1),
            ("OP061", "lr_warmup_iters", 0),
            ("OP062", "lr_wsd_decay_iters", 1),
        )
    ),
    Requirement(
        code="OP063",
        key=f"{_SECTION}.lr_warmup_iters",
        want=Check("fewer steps than the decay", _warms_up_before_the_end),
        why="Bridge shortens a longer warm-up without stopping, and the learning rate asked for is never reached",
        source=_BRIDGE,
        reads=(f"{_SECTION}.lr_decay_iters", "job.num_steps"),
    ),
    *(
        Requirement(
            code=code,
            key=key,
            want=_at_most_lr(key),
            why="the schedule runs between it and optimizer.lr, its highest value",
            source=_CORE,
            reads=("optimizer.lr",),
        )
        for code, key in (("OP064", "optimizer.min_lr"), ("OP065", f"{_SECTION}.lr_warmup_init"))
    ),
    Requirement(
        code="OP066",
        key="optimizer.min_lr",
        want=Equals(0.0),
        when=CONSTANT,
        why="a constant learning rate does not fall",
        source=_CORE,
        reads=(f"{_SECTION}.lr_decay_style",),
    ),
    *unread(
        {"OP067": f"{_SECTION}.lr_wsd_decay_style", "OP068": f"{_SECTION}.lr_wsd_decay_iters"},
        when=NOT_WSD,
        why="only WSD has a last phase",
        source=_CORE,
        reads=(f"{_SECTION}.lr_decay_style",),
    ),
    *unread(
        {"OP069": f"{_SECTION}.lr_warmup_init"},
        when=NO_WARMUP,
        why="there is no warm-up to start from it",
        source=_CORE,
        reads=(f"{_SECTION}.lr_warmup_iters",),
    ),
    Requirement(
        code="OP070",
        key=f"{_SECTION}.end_weight_decay",
        want=Check("at least the start", _grows),
        why="megatron-core's weight decay only grows",
        source=_CORE,
        reads=(f"{_SECTION}.start_weight_decay", "optimizer.weight_decay"),
    ),
    *unread(
        {"OP071": f"{_SECTION}.start_weight_decay"},
        when=CONSTANT_DECAY,
        why="a constant weight decay has one value: optimizer.weight_decay",
        source=_CORE,
        reads=(f"{_SECTION}.weight_decay_incr_style",),
    ),
    *unread(
        {"OP072": f"{_SECTION}.end_weight_decay"},
        when=CONSTANT_DECAY,
        why="a constant weight decay has one value: optimizer.weight_decay",
        source=_CORE,
        reads=(f"{_SECTION}.weight_decay_incr_style",),
    ),
)

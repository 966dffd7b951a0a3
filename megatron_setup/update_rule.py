"""Rules about the update rule: Adam and SGD, loss scaling, narrow and offloaded state.

The fields themselves are forwarded by `megatron_setup.optimizer`. Torch-free.
"""

from collections.abc import Mapping
from typing import Any

from launcher.requirement import Between, Check, Equals, Finding, OneOf, Requirement, Subject, show
from launcher.schema import Dtype
from launcher.schema.optimizer import OptimizerKind
from megatron_setup.precision import NOT_DELAYED
from megatron_setup.rows import unread, where

_CONFIG = "megatron-core 0.19.2 optimizer/optimizer_config.py"
_BUILD = "megatron-core 0.19.2 optimizer/__init__.py"
_ARGUMENTS = "megatron-core 0.19.2 megatron/training/arguments.py"


def _is_a_share(subject: Subject) -> Finding | None:
    found = subject.config.optimizer.optimizer_offload_fraction
    if found is not None and 0.0 < found <= 1.0:
        return None
    return Finding(
        found=show(found), wanted="above 0 and at most 1", hints=("optimizer.optimizer_offload_fraction=1.0",)
    )


_MCORE = "megatron-core"
ADAM = where(_MCORE, text="the optimizer is adam", test=lambda c: c.optimizer.optimizer is OptimizerKind.adam)
SGD = where(_MCORE, text="the optimizer is sgd", test=lambda c: c.optimizer.optimizer is OptimizerKind.sgd)
AWARE = where(
    _MCORE, text="use_precision_aware_optimizer is true", test=lambda c: c.optimizer.use_precision_aware_optimizer
)
NOT_AWARE = where(
    _MCORE, text="use_precision_aware_optimizer is false", test=lambda c: not c.optimizer.use_precision_aware_optimizer
)
OFFLOADED = where(_MCORE, text="optimizer_cpu_offload is true", test=lambda c: c.optimizer.optimizer_cpu_offload)
NOT_OFFLOADED = where(
    _MCORE, text="optimizer_cpu_offload is false", test=lambda c: not c.optimizer.optimizer_cpu_offload
)
NO_DYNAMIC_SCALE = where(
    _MCORE,
    text="precision.dtype is not float16, or loss_scale is fixed",
    test=lambda c: c.precision.dtype is not Dtype.float16 or c.optimizer.loss_scale is not None,
)

UPDATE_ROWS: tuple[Requirement, ...] = (
    *(
        Requirement(code=code, key=f"optimizer.{name}", want=Between(low=0.0), why=why, source=_CONFIG)
        for code, name, why in (
            ("OP010", "lr", "a negative one climbs the loss"),
            ("OP011", "weight_decay", "a negative one makes weights grow"),
            ("OP012", "clip_grad", "it is a norm; 0 is off"),
        )
    ),
    *unread(
        {"OP013": "optimizer.adam_beta1", "OP014": "optimizer.adam_beta2", "OP015": "optimizer.adam_eps"},
        when=SGD,
        why="SGD has no moments",
        source=_BUILD,
        reads=("optimizer.optimizer",),
    ),
    *unread(
        {"OP016": "optimizer.sgd_momentum"},
        when=ADAM,
        why="Adam has its own",
        source=_BUILD,
        reads=("optimizer.optimizer",),
    ),
    Requirement(
        code="OP017",
        key="optimizer.use_distributed_optimizer",
        want=Equals(False),
        when=SGD,
        why="the distributed optimizer keeps Adam's state and asserts that it gets Adam",
        source="megatron-core 0.19.2 optimizer/distrib_optimizer.py",
        reads=("optimizer.optimizer",),
    ),
    *unread(
        {
            "OP018": "optimizer.initial_loss_scale",
            "OP019": "optimizer.min_loss_scale",
            "OP020": "optimizer.loss_scale_window",
            "OP021": "optimizer.hysteresis",
        },
        when=NO_DYNAMIC_SCALE,
        why="the loss is scaled dynamically in float16 only, and only where loss_scale is null",
        source=_BUILD,
        reads=("precision.dtype", "optimizer.loss_scale"),
    ),
)

OFFLOAD_READS: Mapping[str, Any] = {
    "optimizer.optimizer_offload_fraction": None,
    "optimizer.overlap_cpu_optimizer_d2h_h2d": None,
    "optimizer.pin_cpu_grads": None,
    "optimizer.pin_cpu_params": None,
}
"""Read only where the optimizer is offloaded; with their values when off."""

_NARROW = (
    ("OP030", "main_grads_dtype", (Dtype.float32, Dtype.bfloat16, None)),
    ("OP031", "main_params_dtype", (Dtype.float32, Dtype.float16, None)),
)
"""What Transformer Engine's FusedAdam takes beside fp32; the moments take any of the three."""

STATE_ROWS: tuple[Requirement, ...] = (
    Requirement(
        code="OP022",
        key="optimizer.optimizer",
        want=Equals(OptimizerKind.adam),
        when=AWARE,
        why="narrow optimizer state is FusedAdam's",
        source=_CONFIG,
        reads=("optimizer.use_precision_aware_optimizer",),
    ),
    Requirement(
        code="OP023",
        key="optimizer.use_distributed_optimizer",
        want=Equals(True),
        when=AWARE,
        why="only the distributed optimizer hands FusedAdam the narrow gradients",
        source=_CONFIG,
        reads=("optimizer.use_precision_aware_optimizer",),
    ),
    *unread(
        {
            "OP024": "optimizer.main_grads_dtype",
            "OP025": "optimizer.main_params_dtype",
            "OP026": "optimizer.exp_avg_dtype",
            "OP027": "optimizer.exp_avg_sq_dtype",
        },
        off=Dtype.float32,
        when=NOT_AWARE,
        why="the ordinary optimizer keeps everything in fp32",
        source=_CONFIG,
        reads=("optimizer.use_precision_aware_optimizer",),
    ),
    *(
        Requirement(
            code=code,
            key=f"optimizer.{name}",
            want=OneOf(values),
            when=AWARE,
            why="the other formats are not offered by FusedAdam",
            source=_ARGUMENTS,
            reads=("optimizer.use_precision_aware_optimizer",),
        )
        for code, name, values in _NARROW
    ),
    Requirement(
        code="OP040",
        key="optimizer.optimizer_offload_fraction",
        want=Check("above 0 and at most 1", _is_a_share),
        when=OFFLOADED,
        why="null is 0 to megatron-core: offloading is on, and nothing is offloaded",
        source=_CONFIG,
        reads=("optimizer.optimizer_cpu_offload",),
    ),
    Requirement(
        code="OP046",
        key="optimizer.use_precision_aware_optimizer",
        want=Equals(True),
        when=OFFLOADED,
        why="the offloaded optimizer takes its gradients the way of the precision-aware one",
        source=_ARGUMENTS,
        reads=("optimizer.optimizer_cpu_offload",),
    ),
    Requirement(
        code="OP047",
        key="precision.fp8_param",
        want=OneOf((None, False)),
        when=OFFLOADED & NOT_DELAYED,
        why="FP8 weights are offloaded with the delayed recipe only",
        source=_ARGUMENTS,
        reads=("optimizer.optimizer_cpu_offload", "precision.fp8", "precision.fp8_recipe"),
    ),
    Requirement(
        code="OP048",
        key="precision.dtype",
        want=OneOf((Dtype.bfloat16, Dtype.float16)),
        when=OFFLOADED,
        why="in fp32 the host's copy is a view of the model's parameter, and its optimizer refuses to step on a view",
        source="megatron-core 0.19.2 optimizer/cpu_offloading/hybrid_optimizer.py",
        reads=("optimizer.optimizer_cpu_offload",),
    ),
    *unread(
        dict(zip(("OP041", "OP042", "OP043", "OP044"), OFFLOAD_READS, strict=True)),
        when=NOT_OFFLOADED,
        why="only the offloaded optimizer reads it",
        source=_BUILD,
        reads=("optimizer.optimizer_cpu_offload",),
    ),
    Requirement(
        code="OP045",
        key="optimizer.use_torch_optimizer_for_cpu_offload",
        want=OneOf((None, False)),
        why="megatron-core 0.19.2 sets the class it asks for and overwrites it two lines below",
        source=_BUILD,
    ),
)

ROWS: tuple[Requirement, ...] = UPDATE_ROWS + STATE_ROWS

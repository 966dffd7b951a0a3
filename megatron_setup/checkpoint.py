"""Rules about saving and resuming. Nothing is saved yet (`launcher.pending` says so); its fields come with that step.

Torch-free.
"""

from launcher.requirement import Equals, OneOf, Requirement
from megatron_setup.rows import where

_BRIDGE = "megatron-bridge 0.6.2 training/config.py, CheckpointConfig.finalize"

_WHO = "Megatron-Bridge"
UNSAVED = where(_WHO, text="checkpoint.save is false", test=lambda c: not c.checkpoint.save)
IN_BACKGROUND = where(_WHO, text="checkpoint.async_save is true", test=lambda c: c.checkpoint.async_save)
COLOCATED_IN_BACKGROUND = where(
    "generation",
    text="checkpoint.async_save is true and generation is colocated",
    test=lambda c: c.checkpoint.async_save and c.generation.colocated,
)

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
)

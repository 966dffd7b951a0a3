"""Rules about what carries tokens to the experts' ranks: the dispatcher, its flex backends, their own settings.

The fields themselves are forwarded by `megatron_setup.moe`. Torch-free.
"""

from collections.abc import Mapping
from typing import Any

from launcher.requirement import Check, Equals, Finding, OneOf, Requirement, Subject
from launcher.schema import PlatformKind
from launcher.schema.moe import FlexDispatcherBackend, TokenDispatcher
from megatron_setup.rows import unread, where

_CONFIG = "megatron-core 0.19.2 transformer/transformer_config.py"
_DISPATCHER = "megatron-core 0.19.2 transformer/moe/token_dispatcher.py"
_MCORE = "megatron-core"

FLEX_READS: Mapping[str, Any] = {"moe.moe_flex_dispatcher_backend": None, "moe.moe_flex_dispatcher_num_sms": None}
"""Read by the flex dispatcher only; with their values when off."""

HYBRIDEP_READS: Mapping[str, Any] = {
    "moe.moe_permute_fusion_into_hybridep": None,
    "moe.moe_hybridep_num_blocks_permute": None,
    "moe.moe_hybridep_num_blocks_unpermute": None,
    "moe.moe_hybridep_num_sms_preprocessing": None,
    "moe.num_of_hybrid_ep_ranks_per_nvlink_domain": None,
    "moe.use_mnnvl": None,
}
"""Read by HybridEP only."""


def _names_a_backend(subject: Subject) -> Finding | None:
    if subject.config.moe.moe_flex_dispatcher_backend is not None:
        return None
    hopper = subject.config.platform.kind is PlatformKind.hopper
    backend = FlexDispatcherBackend.deepep if hopper else FlexDispatcherBackend.hybridep
    return Finding(
        found="null",
        wanted=" or ".join(FlexDispatcherBackend.__members__),
        hints=(f"moe.moe_flex_dispatcher_backend={backend.value}",),
    )


def _old_switch_is_off(subject: Subject) -> Finding | None:
    if not subject.config.moe.moe_enable_deepep:
        return None
    return Finding(
        found="true",
        wanted="false with moe_flex_dispatcher_backend=deepep",
        hints=(
            "moe.moe_enable_deepep=false",
            "moe.moe_token_dispatcher_type=flex",
            "moe.moe_flex_dispatcher_backend=deepep",
        ),
    )


FLEX = where(
    _MCORE, text="the dispatcher is flex", test=lambda c: c.moe.moe_token_dispatcher_type is TokenDispatcher.flex
)
NOT_FLEX = where(
    _MCORE,
    text="the dispatcher is not flex",
    test=lambda c: c.moe.moe_token_dispatcher_type is not TokenDispatcher.flex,
)
DEEPEP = FLEX & where(
    "",
    text="its backend is deepep",
    test=lambda c: c.moe.moe_flex_dispatcher_backend is FlexDispatcherBackend.deepep,
)
NOT_HYBRIDEP = where(
    _MCORE,
    text="moe_flex_dispatcher_backend is not hybridep",
    test=lambda c: c.moe.moe_flex_dispatcher_backend is not FlexDispatcherBackend.hybridep,
)
ALLGATHER = where(
    _MCORE,
    text="the dispatcher is allgather",
    test=lambda c: c.moe.moe_token_dispatcher_type is TokenDispatcher.allgather,
)

ROWS: tuple[Requirement, ...] = (
    Requirement(
        code="MO001",
        key="moe.moe_flex_dispatcher_backend",
        want=Check("a backend", _names_a_backend),
        when=FLEX,
        why="null is deepep to megatron-core, whether or not this GPU has it",
        source=f"{_CONFIG}; megatron-bridge 0.6.2 training/flex_dispatcher_backend.py",
        reads=("moe.moe_token_dispatcher_type", "platform.kind"),
    ),
    *unread(
        dict(zip(("MO002", "MO003"), FLEX_READS, strict=True)),
        when=NOT_FLEX,
        why="only the flex dispatcher reads it; ncclep without it is an error, the others are ignored",
        source=f"{_CONFIG}; {_DISPATCHER}",
        reads=("moe.moe_token_dispatcher_type",),
    ),
    Requirement(
        code="MO004",
        key="moe.moe_enable_deepep",
        want=Check("false", _old_switch_is_off),
        why="the old switch rewrites moe_flex_dispatcher_backend behind it; the new key says it openly",
        source=_CONFIG,
    ),
    *unread(
        dict(zip(("MO005", "MO006", "MO007", "MO008", "MO009", "MO010"), HYBRIDEP_READS, strict=True)),
        when=NOT_HYBRIDEP,
        why="only HybridEP reads it",
        source=f"{_DISPATCHER}; megatron-bridge 0.6.2 recipes/qwen/gb200/qwen3_moe.py",
        reads=("moe.moe_flex_dispatcher_backend",),
    ),
    Requirement(
        code="MO011",
        key="moe.moe_pad_expert_input_to_capacity",
        want=OneOf((None, False)),
        when=DEEPEP,
        why="DeepEP sends each expert the tokens it has; it does not pad",
        source=_CONFIG,
        reads=("moe.moe_token_dispatcher_type", "moe.moe_flex_dispatcher_backend"),
    ),
    Requirement(
        code="MO012",
        key="moe.moe_shared_expert_overlap",
        want=Equals(False),
        when=ALLGATHER,
        why="the allgather dispatcher has no gap to hide the shared expert in",
        source=_CONFIG,
        reads=("moe.moe_token_dispatcher_type",),
    ),
)

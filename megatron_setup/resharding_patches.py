"""Patch rows of megatron-core's resharding: experts find their way between other expert-parallel sizes.

Owns the rows. `inference_model.refit` applies them.
"""

from __future__ import annotations

from typing import Any

from megatron.core.resharding import utils
from megatron.core.resharding.planner import ParameterMetadata

from launcher.patches import Patch, Rung

_upstreams_expert_index = utils._detect_expert_index_from_param_name
_upstreams_assign_name = utils.assign_ep_resolved_name_inplace

Transfer = tuple[int, tuple[slice, ...], tuple[slice, ...]]
"""Source rank, its slice, and the receiver's."""


def transfer_of_the_owner(
    param_name: str, src_metadata: ParameterMetadata, dst_metadata: ParameterMetadata, my_global_rank: int
) -> list[Transfer]:
    """The whole tensor from the rank that owns the source; the planner prefers this rank where it owns one."""
    del param_name, my_global_rank
    whole = tuple(slice(None) for _ in dst_metadata.shape)
    return [(src_metadata.owner_rank, whole, whole)]


def expert_index(param_name: str) -> int | None:
    """K of `weightK` or `local_experts.K`, the expert's number on its rank; None outside the experts."""
    parts = param_name.split(".")
    if "local_experts" in parts:
        return int(parts[parts.index("local_experts") + 1])
    return _upstreams_expert_index(param_name)


def assign_expert_name(meta: Any, *, base_name: str | None = None) -> None:
    """`meta.resolved_name` gets the expert's number among all experts, also in `local_experts.K`."""
    _upstreams_assign_name(meta, base_name=base_name)
    parts = meta.resolved_name.split(".")
    if meta.global_expert_index is not None and "local_experts" in parts:
        parts[parts.index("local_experts") + 1] = str(meta.global_expert_index)
        meta.resolved_name = ".".join(parts)


_TESTED = {"megatron-core": "==0.19.2"}
_NO_HOOK = "the planner calls its own functions; there is no setting and no class"

EXPERTS: tuple[Patch, ...] = (
    Patch(
        targets=("megatron.core.resharding.planner._finalize_dp_transfers",),
        replacement=transfer_of_the_owner,
        why="where both models have the same data-parallel ranks upstream copies from the receiver's own rank, which "
        "holds another expert under the same name: wrong weights, without a word",
        upstream="megatron-core 0.19.2 resharding/planner.py",
        tested_versions=_TESTED,
        remove_when="the local copy asks whether this rank owns the source",
        rung=Rung.MONKEYPATCH,
        rung_reason=_NO_HOOK,
    ),
    Patch(
        targets=("megatron.core.resharding.utils._detect_expert_index_from_param_name",),
        replacement=expert_index,
        why="the experts of SequentialMLP (moe_grouped_gemm=false, and the CPU platform) are taken for no experts",
        upstream="megatron-core 0.19.2 resharding/utils.py",
        tested_versions=_TESTED,
        remove_when="local_experts.K is understood",
        rung=Rung.MONKEYPATCH,
        rung_reason=_NO_HOOK,
    ),
    Patch(
        targets=("megatron.core.resharding.utils.assign_ep_resolved_name_inplace",),
        replacement=assign_expert_name,
        why="their number on the rank would be taken for their number among all experts",
        upstream="megatron-core 0.19.2 resharding/utils.py",
        tested_versions=_TESTED,
        remove_when="local_experts.K is understood",
        rung=Rung.MONKEYPATCH,
        rung_reason=_NO_HOOK,
    ),
)

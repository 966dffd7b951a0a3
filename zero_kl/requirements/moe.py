"""The recipe's rows about mixture of experts: routing that is the same in both passes, and sums of one order."""

from __future__ import annotations

from typing import Any

from launcher.requirement import Equals, Requirement
from launcher.schema.moe import LoadBalancing, TokenDispatcher
from zero_kl.conditions import EXPERTS, RECIPE

_COMBINE = "zero_kl/kernels/moe_rows.py (the combine of fixed order)"


def _row(code: str, *, field: str, value: Any, why: str, source: str = RECIPE) -> Requirement:
    return Requirement(code=code, key=f"moe.{field}", want=Equals(value), when=EXPERTS, why=why, source=source)


REQUIREMENTS: tuple[Requirement, ...] = (
    _row(
        "ZK030",
        field="moe_token_dispatcher_type",
        value=TokenDispatcher.alltoall,
        why="the other dispatchers add a token's expert outputs across ranks in an order of their own",
        source=f"{RECIPE}; {_COMBINE}",
    ),
    _row(
        "ZK031",
        field="moe_permute_fusion",
        value=False,
        why="Transformer Engine's fused unpermute replaces the combine whose order is fixed",
        source=f"{RECIPE}; megatron-core 0.19.2 transformer/moe/moe_utils.py, unpermute; {_COMBINE}",
    ),
    _row(
        "ZK032",
        field="moe_router_dtype",
        value="fp32",
        why="router logits that are nearly equal in BF16 pick other experts for one changed last bit",
    ),
    _row(
        "ZK033",
        field="moe_pad_experts_for_cuda_graph_inference",
        value=False,
        why="the router then drops and pads in decode and not in training",
        source=f"{RECIPE}; megatron-core 0.19.2 transformer/transformer_config.py documents it",
    ),
    _row(
        "ZK034",
        field="moe_enable_deepep",
        value=False,
        why="DeepEP combines expert outputs in kernels of its own, and it needs the flex dispatcher",
        source=f"{RECIPE}; megatron-core 0.19.2 transformer/transformer_config.py raises without flex",
    ),
    _row(
        "ZK035",
        field="moe_shared_expert_overlap",
        value=False,
        why="it moves the shared expert into the dispatcher and adds it there, at another place in the sum",
        source=f"{RECIPE}; megatron-core 0.19.2 transformer/moe/token_dispatcher.py",
    ),
    _row(
        "ZK036",
        field="freeze_moe_router",
        value=True,
        why="the recipe trains around a fixed router; no run with a trained one was published as exact",
    ),
    _row(
        "ZK037",
        field="moe_router_load_balancing_type",
        value=LoadBalancing.none,
        why="balancing acts in training only: sinkhorn even routes by another rule there than in generation",
        source=f"{RECIPE}; megatron-core 0.19.2 transformer/moe/router.py, sinkhorn_load_balancing",
    ),
    _row(
        "ZK038",
        field="moe_router_bias_update_rate",
        value=0.0,
        why="a bias that moves after a training step routes the next one otherwise than the generation before it",
    ),
    _row(
        "ZK039",
        field="moe_enable_routing_replay",
        value=False,
        why="training would reuse the experts that generation recorded, which hides a router that disagrees",
    ),
    _row(
        "ZK040",
        field="moe_expert_capacity_factor",
        value=None,
        why="which tokens an expert drops depends on the other tokens of the batch",
        source=f"megatron-core 0.19.2 transformer/moe/moe_utils.py, apply_router_token_dropping; {_COMBINE}",
    ),
)

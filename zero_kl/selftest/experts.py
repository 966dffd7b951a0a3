"""The checks of a mixture of experts: router, top-k, grouped products, and the sum over a token's experts.

Routing and the sum are taken where megatron-core's layer takes them, so a patch is tested by what it does.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.moe import moe_layer, router
from megatron.core.transformer.moe.moe_utils import router_gating_linear
from torch import Tensor

from zero_kl.selftest.bench import TOKENS, Bench
from zero_kl.selftest.modules import random_values
from zero_kl.selftest.rows import check_group_rows, check_rows, rows_that_differ


def check_router(bench: Bench) -> str | None:
    """The gating product in fp32."""
    weight = bench.weight(bench.num_all_experts, bench.shapes.hidden_size)
    return check_rows(
        lambda rows: router_gating_linear(rows, weight, None, torch.float32),
        rows=bench.rows(TOKENS, width=bench.shapes.hidden_size),
        sizes=bench.batches,
        quantum=64,
    )


def check_topk(bench: Bench) -> str | None:
    """A token's probabilities where gradients are recorded (a training step) and where they are not."""
    logits = _logits(bench)
    probs = _route(bench, logits=logits)[0]
    with torch.enable_grad():
        recorded = _route(bench, logits=logits.clone().requires_grad_())[0]
    differ = rows_that_differ(probs, right=recorded.detach())
    return f"{differ} of {TOKENS} tokens have other probabilities where gradients are recorded" if differ else None


def check_experts(bench: Bench) -> str | None:
    """Both products of the grouped experts, with uneven and empty groups."""
    shapes, num = bench.shapes, bench.shapes.num_experts
    splits = [0 if i == 1 else 7 + 61 * (i % 5) for i in range(num)]
    for width_in, width_out in (
        (shapes.hidden_size, 2 * shapes.moe_ffn_hidden_size),
        (shapes.moe_ffn_hidden_size, shapes.hidden_size),
    ):
        op = bench.modules.grouped_linear(num, width_in=width_in, width_out=width_out)
        rows = random_values(sum(splits), width_in, dtype=bench.dtype, device=bench.device)
        found = check_group_rows(op, rows=rows, splits=splits, sizes=(1, 5, 64))
        if found:
            return f"{found} ({width_in} x {width_out})"
    return None


def check_combine(bench: Bench) -> str | None:
    """Tokens to the experts' order and back through the layer's dispatcher; in between each expert scales its rows."""
    rows = bench.rows(TOKENS, width=bench.shapes.hidden_size)
    probs, routing = _route(bench, logits=_logits(bench))
    experts = bench.num_all_experts
    groups: Any = {"ep": None, "expt_tp": None, "tp_ep": None}
    dispatcher: Any = moe_layer.MoEAlltoAllTokenDispatcher(
        experts, list(range(experts)), config=bench.transformer_config, pg_collection=ProcessGroupCollection(**groups)
    )

    def through_experts(index: Tensor) -> Tensor:
        tokens, mask = rows[index], routing[index]
        permuted, _ = dispatcher.dispatch_preprocess(tokens[:, None], mask, probs[index])
        expert = mask.T.nonzero()[:, :1]
        return dispatcher.combine_postprocess(permuted * (1 + expert).rsqrt().to(permuted.dtype))[:, 0]

    everyone = torch.arange(TOKENS, device=bench.device)
    differ = rows_that_differ(through_experts(everyone), right=through_experts(everyone))
    if differ:
        return f"{differ} of {TOKENS} tokens differ from run to run"
    return check_rows(through_experts, rows=everyone, sizes=(1, *bench.batches))


def _logits(bench: Bench) -> Tensor:
    return random_values(TOKENS, bench.num_all_experts, dtype=torch.float32, device=bench.device)


def _route(bench: Bench, *, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities and map of the experts of each token, [tokens, experts]."""
    return router.topk_routing_with_score_function(logits, bench.shapes.topk)

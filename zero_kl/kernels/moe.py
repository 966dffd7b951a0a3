"""The patch rows that make megatron-core's mixture of experts exact: its dispatcher's sums, its router's top-k.

The dispatcher must be in force when the model is built; it also lets a CUDA graph hold a layer with experts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from megatron.core.transformer.cuda_graphs import is_graph_warmup
from megatron.core.transformer.moe.moe_utils import topk_routing_with_score_function
from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher
from torch import Tensor

from launcher.patches import Patch, Rung
from zero_kl.kernels.moe_rows import combine, full_rows, packed_rows, spread, spread_probs


class FixedOrderDispatcher(MoEAlltoAllTokenDispatcher):
    """megatron-core's alltoall dispatcher with sums of fixed order, and without a host in the way of a CUDA graph.

    The numbers of rows per expert go to the host, which hands them to the grouped GEMM; a graph cannot hold that. While
    one is captured, each expert gets a row for every token of the step instead (`full_rows`), so the host knows all
    numbers beforehand. No token can be dropped, and a token's own rows, and the order of their sum, are the same.
    """

    def dispatch_preprocess(self, hidden_states: Tensor, routing_map: Tensor, probs: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens as rows grouped by expert, and each row's probability."""
        config = self.config
        assert not (config.moe_permute_fusion or self.drop_and_pad or config.moe_router_padding_for_quantization)
        assert config.moe_expert_capacity_factor is None, "every token has all of its experts"
        assert self.shared_experts is None, "moe_shared_expert_overlap adds the shared expert in another place"
        self.hidden_shape, self.routing_map, self.probs = hidden_states.shape, routing_map, probs
        self.num_tokens_of_graph = routing_map.shape[0] if _in_graph() else None
        self.tokens_per_expert = self._maybe_dtoh_and_synchronize("before_permutation_1", self.preprocess(routing_map))
        rows_of = packed_rows if self.num_tokens_of_graph is None else full_rows
        rows = rows_of(routing_map, k=config.moe_router_topk)
        self.reversed_local_input_permutation_mapping = rows.index
        tokens = hidden_states.reshape(-1, self.hidden_shape[-1])
        return spread(tokens, rows=rows), spread_probs(probs, rows=rows)

    def preprocess(self, routing_map: Tensor) -> Tensor:
        """The number of rows of each local expert."""
        if self.num_tokens_of_graph is None:
            return super().preprocess(routing_map)
        assert self.ep_size == 1 and self.tp_size == 1, "ranks that share experts would exchange the unused rows"
        return torch.full((self.num_local_experts,), self.num_tokens_of_graph)

    def _maybe_dtoh_and_synchronize(self, point: str, tokens_per_expert: Tensor | None = None) -> Any:
        if self.num_tokens_of_graph is None:
            return super()._maybe_dtoh_and_synchronize(point, tokens_per_expert)
        return tokens_per_expert

    def dispatch_postprocess(self, global_input_tokens: Tensor, global_probs: Tensor) -> tuple[Any, Any, Any]:
        """Rows grouped by local expert. On one rank they are already; megatron-core would copy each to where it is."""
        if self.ep_size > 1 or self.tp_size > 1:
            return super().dispatch_postprocess(global_input_tokens, global_probs)
        for point in ("before_permutation_2", "before_finish"):
            self.tokens_per_expert = self._maybe_dtoh_and_synchronize(point, self.tokens_per_expert)
        return global_input_tokens, self.tokens_per_expert, global_probs

    def combine_preprocess(self, hidden_states: Tensor) -> Tensor:
        """The way back of `dispatch_postprocess`."""
        if self.ep_size > 1 or self.tp_size > 1:
            return super().combine_preprocess(hidden_states)
        return hidden_states

    def combine_postprocess(self, permutated_local_input_tokens: Tensor) -> Tensor:
        """Each token's rows, added in the order of their experts."""
        index = self.reversed_local_input_permutation_mapping
        return combine(permutated_local_input_tokens, index=index).view(self.hidden_shape)


def _in_graph() -> bool:
    return is_graph_warmup() or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


class _Sorted:
    """Stands where a RouterReplay may stand: the one place around megatron-core's top-k that a caller can reach."""

    @staticmethod
    def get_replay_topk(
        scores: Tensor,
        topk: int,
        num_groups: int | None,
        group_topk: int | None,
        default_compute_topk: Callable[[Tensor, int, int | None, int | None], tuple[Tensor, Tensor]],
    ) -> tuple[Tensor, Tensor]:
        """megatron-core sorts where gradients are recorded."""
        with torch.enable_grad():
            return default_compute_topk(scores, topk, num_groups, group_topk)


def topk_routing(
    logits: Tensor,
    topk: int,
    use_pre_softmax: bool = False,
    num_groups: int | None = None,
    group_topk: int | None = None,
    scaling_factor: float | None = None,
    score_function: str = "softmax",
    expert_bias: Tensor | None = None,
    fused: bool = False,
    router_replay: Any = None,
    dense_output: bool = False,
    precomputed_indices: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """megatron-core's `topk_routing_with_score_function` whose top-k is sorted with and without gradients alike."""
    hook: Any = _Sorted() if router_replay is None else router_replay
    return topk_routing_with_score_function(
        logits,
        topk,
        use_pre_softmax=use_pre_softmax,
        num_groups=num_groups,
        group_topk=group_topk,
        scaling_factor=scaling_factor,
        score_function=score_function,
        expert_bias=expert_bias,
        fused=fused,
        router_replay=hook,
        dense_output=dense_output,
        precomputed_indices=precomputed_indices,
    )


_MOE = "megatron-core 0.19.2, megatron/core/transformer/moe"
_TESTED = {"megatron-core": "==0.19.2"}

PATCHES = (
    Patch(
        targets=("megatron.core.transformer.moe.moe_layer.MoEAlltoAllTokenDispatcher",),
        replacement=FixedOrderDispatcher,
        why="unpermute adds a token's expert outputs in BF16 with atomics, in the order they arrive, and the gradient "
        "of permute does the same",
        upstream=f"{_MOE}/moe_utils.py, permute and unpermute",
        tested_versions=_TESTED,
        remove_when="megatron-core's unfused combine adds a token's experts in a fixed order",
        rung=Rung.SUBCLASS,
        rung_reason="no setting does it: torch.use_deterministic_algorithms would change every op of the process, "
        "moe_permute_fusion is forbidden; MoELayer names its dispatcher's class, so the name is bound to a subclass",
    ),
    Patch(
        targets=("megatron.core.transformer.moe.router.topk_routing_with_score_function",),
        replacement=topk_routing,
        why="the top-k is sorted only where gradients are recorded, so with three and more experts a token's "
        "probabilities are normalised in one order in a training step and in another in scoring and generation",
        upstream=f"{_MOE}/moe_utils.py, topk_routing_with_score_function: sorted=torch.is_grad_enabled()",
        tested_versions=_TESTED,
        remove_when="megatron-core sorts the top-k in every mode, or in none",
        rung=Rung.MONKEYPATCH,
        rung_reason="no setting does it and the call is inside a module-level function; its hook for routing replay is "
        "where the order is fixed, and only a caller can set that",
    ),
)

"""The value head: a GPT's output layer replaced by one number per token, as a hook of the pipeline's model build."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from megatron.bridge.training.utils.train_utils import LinearForLastLayer
from megatron.core.transformer.module import MegatronModule

from launcher.schema import RunConfig


class ValueHead(LinearForLastLayer):
    """hidden -> one fp32 number per token: [s, b, h] -> [s, b], from which the model makes [b, s].

    Its weight [1, h] has the model's number format and is the same on every tensor-parallel rank. Under sequence
    parallelism a rank computes its share of the tokens, then all get all values; the weight's gradients are summed over
    the ranks (the base class marks it).
    """

    def forward(
        self, input_: torch.Tensor, weight: torch.Tensor | None = None, runtime_gather_output: bool | None = None
    ) -> tuple[torch.Tensor, None]:
        """The values and no bias; the other arguments are those of an output layer over a vocabulary."""
        values, bias = super().forward(input_, weight, runtime_gather_output)
        return values.squeeze(-1), bias


def value_head_hook(config: RunConfig) -> Callable[[list[MegatronModule]], list[MegatronModule]]:
    """A hook that replaces the output layer of the chunk that has one; for `build_model`, after the weights are loaded.

    Later than the load, because the checkpoint has an output layer over the vocabulary: megatron-core loads that weight
    with `allow_shape_mismatch`, and the head would silently start as its first row. Before the wraps, which make
    buffers for what trains. A head tied to the embedding is untied on every stage: the embedding's gradient would be
    added to the head's. Peak memory: the output layer's weight, until it is replaced.
    """

    def replace_output_layer(model: list[MegatronModule]) -> list[MegatronModule]:
        for chunk in model:
            _untie(chunk)
            if chunk.post_process:
                chunk.output_layer = _seeded_head(chunk, seed=config.job.seed)
        return model

    return replace_output_layer


def _untie(chunk: Any) -> None:
    """Take back what megatron-core's `setup_embeddings_and_output_layer` marked for two weights that are one."""
    chunk.share_embeddings_and_output_weights = False
    for param in chunk.parameters():
        for mark in ("shared", "shared_embedding", "zero_out_wgrad"):
            if hasattr(param, mark):
                delattr(param, mark)


def _seeded_head(chunk: Any, *, seed: int) -> ValueHead:
    """Drawn with the model's `init_method_std` by a generator of its own: the same for any layout, device and rank."""
    hidden_size = chunk.config.hidden_size
    head = ValueHead(input_size=hidden_size, output_size=1, sequence_parallel=chunk.config.sequence_parallel)
    drawn = torch.randn(1, hidden_size, generator=torch.Generator().manual_seed(seed))
    head.weight.data = (drawn * chunk.config.init_method_std).to(chunk.config.params_dtype)
    return head

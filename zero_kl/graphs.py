"""CUDA graphs of decode, captured for the life of one engine and dropped with it.

A graph holds the addresses of its engine's KV cache, and a layer that has graphs would capture the training forward
too. So the model is built without them, and between two engines it has none.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.cuda_graphs import CudaGraphManager, annotate_first_last_layer, delete_cuda_graphs
from megatron.core.transformer.enums import InferenceCudaGraphScope
from megatron.core.transformer.transformer_layer import TransformerLayer


@contextmanager
def capturable(model: GPTModel, *, fields: Mapping[str, Any]) -> Generator[None]:
    """An engine made inside the block captures its decode steps as `fields` of the model's configuration ask.

    `fields` are `zero_kl.inference.graph_fields`; where they ask for no graphs the block changes nothing. The stream
    is another one inside the block: megatron-core leaves the default stream for good when it makes its first manager,
    without waiting for what runs there (an optimizer step).
    """
    config: Any = model.config
    scope = InferenceCudaGraphScope[fields["inference_cuda_graph_scope"]]
    if scope is InferenceCudaGraphScope.none:
        yield
        return
    before = {name: getattr(config, name) for name in fields}
    stream = torch.cuda.current_stream()
    torch.cuda.synchronize()
    config.cuda_graph_impl, config.inference_cuda_graph_scope = fields["cuda_graph_impl"], scope
    owners = _owners(model, scope=scope)
    try:
        for owner in owners:
            owner.cudagraph_manager = CudaGraphManager(config, need_backward=False)
        yield
    finally:
        for owner in owners:
            owner._modules.pop("cudagraph_manager", None)
        delete_cuda_graphs()
        for name, value in before.items():
            setattr(config, name, value)
        torch.cuda.synchronize()
        torch.cuda.set_stream(stream)


def _owners(model: GPTModel, *, scope: InferenceCudaGraphScope) -> list[Any]:
    """What gets graphs: each layer, or all layers as one block."""
    decoder: Any = model.decoder
    if scope is InferenceCudaGraphScope.block:
        return [decoder]
    layers = [layer for layer in decoder.layers if isinstance(layer, TransformerLayer)]
    assert len(layers) == len(decoder.layers), "only transformer layers were captured and measured"
    annotate_first_last_layer(layers)  # the layers between them take their input where the layer before left it
    return layers

"""What each module of the model computed for one request, row by row: in the training forward, or in the engine.

Owns the hooks and how a module's rows are found again as positions of the request. Comparing is `zero_kl.search`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from megatron.core.models.gpt.gpt_model import GPTModel
from torch import Tensor

type Trace = dict[str, dict[int, Tensor]]
"""Values on the CPU by point and position in the sequence; points in the order in which they were computed."""

OUTPUTS = {
    "input_layernorm": "input_layernorm",
    "self_attention.linear_qkv": "self_attention.linear_qkv",
    "self_attention.q_layernorm": "self_attention.q_layernorm",
    "self_attention.k_layernorm": "self_attention.k_layernorm",
    "self_attention.linear_proj": "self_attention.linear_proj",
    "pre_mlp_layernorm": "pre_mlp_layernorm",
    "mlp.router": "mlp.router",
    "mlp.experts": "mlp.experts",
    "mlp.shared_experts": "mlp.shared_experts",
    "mlp.linear_fc1": "mlp.linear_fc1",
    "mlp.linear_fc2": "mlp.linear_fc2",
    "mlp": "mlp.combine",
    "": "residual",
}
"""Modules of a layer whose output is a point, and the point's name. A dense mlp's output is that of its linear_fc2."""

INPUTS = {"self_attention.linear_proj": "self_attention.core_attention", "mlp.linear_fc2": "mlp.activation"}
"""Modules whose input is a point: generation computes attention without the module that training has for it."""

ENDS = {"embedding": "embedding", "decoder.final_layernorm": "final_layernorm", "output_layer": "output_layer"}


@dataclass
class Recorder:
    """Collects `trace` while its hooks are on. `rows`: position of the request by row of the running forward."""

    place: Callable[[tuple[Any, ...], Mapping[str, Any]], tuple[int, dict[int, int]]]
    """What the model was called with -> number of rows, and the rows that are the request's, with their positions."""

    trace: Trace = field(default_factory=dict)
    num_rows: int = 0
    rows: dict[int, int] = field(default_factory=dict)
    logit_rows: list[int] | None = None
    """The rows whose logits are made, where not all are."""

    routing: Tensor | None = None
    """Of the layer that runs: [num_rows, experts] bool."""

    def start(self, args: tuple[Any, ...], *, kwargs: Mapping[str, Any]) -> None:
        """A forward begins."""
        self.num_rows, self.rows = self.place(args, kwargs)
        context = kwargs.get("inference_context")
        self.logit_rows = (
            None if context is None else context.active_logit_idxs[: context.num_last_token_logits].tolist()
        )

    def record(self, point: str, *, value: Any) -> None:
        """Keep the request's rows of a module's input or output."""
        if point.endswith("mlp.router"):
            value, self.routing = value
        if isinstance(value, tuple):
            value = value[0]
        if point.endswith("mlp.experts"):
            value = self._by_token(value)
        numbers = list(range(self.num_rows))
        if point == "output_layer" and self.logit_rows is not None:
            numbers = self.logit_rows
        if value is None or not self.rows:
            return
        flat = value.detach().reshape(len(numbers), -1)
        kept = [(i, self.rows[number]) for i, number in enumerate(numbers) if number in self.rows]
        values = flat[[i for i, _ in kept]].cpu()
        self.trace.setdefault(point, {}).update({position: values[i] for i, (_, position) in enumerate(kept)})

    def _by_token(self, value: Tensor) -> Tensor | None:
        """Rows in the experts' order -> a token's rows side by side; None where experts are on several ranks."""
        assert self.routing is not None, "the router runs before the experts"
        tokens = self.routing.T.nonzero()[:, 1]
        if len(tokens) != len(value):
            return None
        return value[tokens.argsort(stable=True)].reshape(self.num_rows, -1)


@contextmanager
def recording(model: GPTModel, *, recorder: Recorder) -> Generator[None]:
    """The recorder's hooks are on the (unwrapped) model inside the block."""

    def start(_: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        recorder.start(args, kwargs=kwargs)

    with ExitStack() as stack:
        stack.callback(model.register_forward_pre_hook(start, with_kwargs=True).remove)
        for name, point in ENDS.items():
            _hook(model.get_submodule(name), stack=stack, recorder=recorder, output=point)
        for layer in model.decoder.layers:
            modules: dict[str, torch.nn.Module] = dict(layer.named_modules())
            number = f"layer {layer.layer_number}, "
            for name in (name for name in OUTPUTS if name in modules):
                entry = number + INPUTS[name] if name in INPUTS else None
                _hook(modules[name], stack=stack, recorder=recorder, output=number + OUTPUTS[name], entry=entry)
        yield


def _hook(
    module: torch.nn.Module, *, stack: ExitStack, recorder: Recorder, output: str, entry: str | None = None
) -> None:
    def after(_: torch.nn.Module, __: Any, value: Any) -> None:
        recorder.record(output, value=value)

    def before(_: torch.nn.Module, args: tuple[Any, ...]) -> None:
        assert entry is not None
        recorder.record(entry, value=args[0])

    stack.callback(module.register_forward_hook(after).remove)
    if entry is not None:
        stack.callback(module.register_forward_pre_hook(before).remove)


def in_training(*, sequence: int, length: int, micro_batch_size: int) -> Recorder:
    """For a scoring pass: the `length` predicted positions of one sequence, in whichever micro-batch it comes."""
    forwards = iter(range(1_000_000))

    def place(args: tuple[Any, ...], _: Mapping[str, Any]) -> tuple[int, dict[int, int]]:
        batch, padded = args[0].shape
        here = next(forwards) == sequence // micro_batch_size
        row = sequence % micro_batch_size
        return batch * padded, {s * batch + row: s for s in range(length)} if here else {}

    return Recorder(place=place)


def in_engine(*, request: int) -> Recorder:
    """For the dynamic engine's steps: every position of a request that goes through the model."""

    def place(_: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[int, dict[int, int]]:
        context = kwargs["inference_context"]
        n = context.active_token_count
        requests = context.request_ids[context.token_to_request_idx[:n].long()].tolist()
        positions = context.token_to_position_in_request[:n].tolist()
        rows = {row: p for row, (r, p) in enumerate(zip(requests, positions, strict=True)) if r == request}
        return context.padded_active_token_count, rows

    return Recorder(place=place)

"""An EAGLE-3 draft model, trained beside the policy: it guesses the token after the next from the policy's states.

As EAGLE-3, it reads the policy's embedding and has its own norm and output head. Owns the module, the capture of hidden
states and the loss; its checkpoint's names are in `draft_weights.py`, its rules in `draft.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from megatron.core.models.gpt import GPTModel, gpt_layer_specs
from megatron.core.tensor_parallel import ColumnParallelLinear, gather_from_tensor_model_parallel_region
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlock, TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import TransformerLayer
from megatron.core.utils import unwrap_model
from torch import Tensor

from launcher.errors import ConfigError
from launcher.schema import RunConfig
from megatron_setup.draft import aux_layers
from megatron_setup.draft_weights import DraftShape, load_weights, read_shape

ModelHook = Callable[[list[MegatronModule]], list[MegatronModule]]

GRAD_NORM_GROUP = "mtp"
"""megatron-core's one group of gradients that is clipped by a norm of its own, made for heads that are detached too."""

_AS_THE_POLICY = (
    "hidden_size",
    "tensor_model_parallel_size",
    "sequence_parallel",
    "params_dtype",
    "bf16",
    "autocast_dtype",
    "init_method_std",
    "use_cpu_initialization",
    "attention_backend",
    "attention_softmax_in_fp32",
    "flash_attention_version",
    "batch_invariant_mode",
    "deterministic_mode",
    "gradient_accumulation_fusion",
    "bias_activation_fusion",
    "bias_dropout_fusion",
    "apply_rope_fusion",
    "masked_softmax_fusion",
    "persist_layer_norm",
)
"""What the draft's layers share with the policy's: the width, the split over ranks, number formats and kernels."""


def draft_config(provider: Any, *, shape: DraftShape) -> TransformerConfig:
    """The draft's layers: Llama's, dense and without dropout, whatever the policy's are; always on one stage."""
    return TransformerConfig(
        **{name: getattr(provider, name) for name in _AS_THE_POLICY},
        num_layers=shape.num_layers,
        num_attention_heads=shape.num_attention_heads,
        num_query_groups=shape.num_query_groups,
        kv_channels=shape.kv_channels,
        ffn_hidden_size=shape.ffn_hidden_size,
        layernorm_epsilon=shape.layernorm_epsilon,
        normalization="RMSNorm",
        activation_func=torch.nn.functional.silu,
        gated_linear_unit=True,
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        hetereogenous_dist_checkpoint=True,  # the first layer is wider than the others: they are not one tensor
    )


class FusedInput(torch.nn.Module):
    """In the place of the first layer's norm: the next token's embedding beside the hidden state, each normed.

    The layer passes the hidden state only, so `embeddings` is set before each forward pass.
    """

    embeddings: Tensor

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float) -> None:
        super().__init__()
        norm = _backend().layer_norm()
        self.enorm = norm(config=config, hidden_size=hidden_size, eps=eps)
        self.hnorm = norm(config=config, hidden_size=hidden_size, eps=eps)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[s, b, h] -> [s, b, 2h]."""
        fused = torch.cat((self.enorm(self.embeddings), self.hnorm(hidden_states)), dim=-1)
        del self.embeddings  # another forward pass without new ones is a bug
        return fused


class DraftModel(MegatronModule):
    """`fc` fuses the policy's hidden states, `decoder` has the layers and the last norm, `output_layer` the head.

    `d2t` is a buffer where the draft knows fewer tokens than the policy: token i of the draft is i + d2t[i].
    """

    d2t: Tensor | None

    def __init__(self, config: TransformerConfig, *, shape: DraftShape, num_states: int, pg: Any) -> None:
        super().__init__(config=config)
        self.capture = StateCapture()
        self.fc = torch.nn.Linear(
            num_states * config.hidden_size, config.hidden_size, bias=False, dtype=config.params_dtype
        )
        config.init_method(self.fc.weight)  # pyright: ignore[reportOptionalCall]  __post_init__ sets it
        self.fc.weight.sequence_parallel = config.sequence_parallel  # pyright: ignore[reportAttributeAccessIssue]
        self.rotary_pos_emb = RotaryEmbedding(
            kv_channels=shape.kv_channels,
            rotary_percent=1.0,
            rotary_base=shape.rotary_base,  # pyright: ignore[reportArgumentType]  a float is as good
            use_cpu_initialization=bool(config.use_cpu_initialization),
            cp_group=pg.cp,
        )
        self.decoder = TransformerBlock(config, spec=_layers(config), pg_collection=pg)
        _widen(self.decoder.layers[0].self_attention, config=config, tp_group=pg.tp)
        self.output_layer = ColumnParallelLinear(
            config.hidden_size,
            shape.vocab_size,
            config=config,
            init_method=config.init_method,  # pyright: ignore[reportArgumentType]
            bias=False,
            tp_group=pg.tp,
        )
        self.register_buffer("d2t", torch.zeros(shape.vocab_size, dtype=torch.int64) if shape.has_d2t else None)
        for param in self.parameters():
            param.grad_norm_group = GRAD_NORM_GROUP  # pyright: ignore[reportAttributeAccessIssue]

    def forward(self, states: Sequence[Tensor], *, embeddings: Tensor, length: int) -> Tensor:
        """Logits [length, b, vocabulary / TP].

        `states` of the policy's layers and `embeddings` of the next tokens are [s, b, h]; s is `length`, or this rank's
        share of it under sequence parallelism.
        """
        first: Any = self.decoder.layers[0]
        first.input_layernorm.embeddings = embeddings
        hidden = self.decoder(
            hidden_states=self.fc(torch.cat(list(states), dim=-1)),
            attention_mask=None,
            rotary_pos_emb=self.rotary_pos_emb(length),
        )
        return self.output_layer(hidden)[0]


def _backend() -> Any:
    """Transformer Engine's modules; looked up now, since the CPU platform puts its own under this name."""
    provider: Any = gpt_layer_specs.TESpecProvider
    return provider()


def _layers(config: TransformerConfig) -> TransformerBlockSubmodules:
    """megatron-core's own layer for every layer but the first's norm."""
    plain = gpt_layer_specs.get_gpt_layer_with_transformer_engine_submodules()
    first = replace(plain, input_layernorm=FusedInput)
    specs = [ModuleSpec(module=TransformerLayer, submodules=sub) for sub in (first, *[plain] * (config.num_layers - 1))]
    return TransformerBlockSubmodules(layer_specs=specs, layer_norm=_backend().layer_norm())


def _widen(attention: Any, *, config: TransformerConfig, tp_group: Any) -> None:
    """The first layer's queries, keys and values are made from both parts of its input, which is normed already."""
    attention.linear_qkv = ColumnParallelLinear(
        2 * config.hidden_size,
        attention.linear_qkv_out_dim,
        config=config,
        init_method=config.init_method,  # pyright: ignore[reportArgumentType]
        bias=False,
        tp_group=tp_group,
    )


@dataclass
class StateCapture:
    """The policy's hidden states of the newest forward pass that trains, by layer, ascending, [s, b, h] each.

    Recomputed layers run again outside of the policy's own forward pass and are not taken twice. Scoring and generation
    run without gradients: nothing is kept of them.
    """

    states: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    is_on: bool = False

    def watch(self, policy: GPTModel, *, layers: Sequence[int]) -> None:
        """Register the hooks."""
        policy.register_forward_pre_hook(self._start)
        for index in layers:
            policy.decoder.layers[index].register_forward_hook(partial(self._take, index))
        policy.register_forward_hook(self._stop)

    def pop(self) -> list[Tensor]:
        """The states, once."""
        assert self.states, "a loss of the draft without a training forward pass of the policy before it"
        states = list(self.states.values())
        self.states.clear()
        return states

    def _start(self, policy: torch.nn.Module, _inputs: Any) -> None:
        self.is_on = policy.training and torch.is_grad_enabled()
        self.states.clear()

    def _take(self, index: int, _layer: torch.nn.Module, _inputs: Any, output: Any) -> None:
        """Detached: no gradient of the draft reaches the policy."""
        if self.is_on:
            self.states[index] = output[0].detach()

    def _stop(self, _policy: torch.nn.Module, _inputs: Any, _output: Any) -> None:
        self.is_on = False


def draft_hook(config: RunConfig, *, provider: Any) -> ModelHook:
    """Attaches the draft as `draft` of the policy's one chunk, after the policy's weights are loaded.

    Before mixed precision and DDP wrap the chunk: the draft is in DDP's buffers, in the optimizer, and saved and
    resumed with the policy. Its weights are random, or those of `model.draft.hf_path`. The hook raises ConfigError for
    a policy that is no GPTModel, and for a checkpoint that does not fit.
    """

    def attach(model: list[MegatronModule]) -> list[MegatronModule]:
        (policy,) = model  # rule DR010: one stage
        if not isinstance(policy, GPTModel):
            raise ConfigError(
                f"error: model.draft.enabled is true, and this model is a {type(policy).__name__}\n"
                "  why:    a draft reads the layers of a GPTModel\n"
                "hint: model.draft.enabled=false"
            )
        settings = config.model.draft
        shape = read_shape(settings, provider=provider, vocab_size=policy.vocab_size)
        layers = aux_layers(config, num_layers=provider.num_layers)
        draft = DraftModel(
            draft_config(provider, shape=shape),
            shape=shape,
            num_states=len(layers),
            pg=policy.pg_collection,
        )
        if settings.hf_path is not None:
            load_weights(draft, folder=Path(settings.hf_path))
        policy.draft = draft
        draft.capture.watch(policy, layers=layers)
        return model

    return attach


def draft_loss(chunk: MegatronModule, *, logits: Tensor, targets: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
    """Cross entropy of the draft against the policy's probabilities, summed over the mask like the policy's own loss.

    Megatron's schedule divides by the tokens, so the caller adds `model.draft.loss_weight` times this to its sum.
    chunk: the policy's, wrapped or not, whose training forward pass gave `logits` [b, s, vocabulary / TP]; to be called
    once for each. targets [b, s]: the next token of each position; positions [b, s]; mask [b, s]: the policy's own, 1
    where its prediction counts. At position t the draft sees the policy's states of t and the token t + 1 and guesses
    what the policy says at t + 1, so the mask's first column has no part. fp32.
    """
    policy: Any = unwrap_model(chunk)
    draft: DraftModel = policy.draft
    with torch.no_grad():
        embeddings = policy.embedding(input_ids=targets, position_ids=positions)
    guess = draft(draft.capture.pop(), embeddings=embeddings, length=targets.shape[1])[:-1].transpose(0, 1)
    wanted = _whole_rows(logits.detach()[:, 1:]).float()
    guess = torch.log_softmax(_whole_rows(guess).float(), dim=-1)
    tokens = torch.arange(guess.shape[-1], device=guess.device)
    wanted = wanted[..., tokens if draft.d2t is None else tokens + draft.d2t]
    entropy = -(torch.softmax(wanted, dim=-1) * guess).sum(dim=-1)
    return (entropy * mask[:, 1:]).sum()


def _whole_rows(logits: Tensor) -> Tensor:
    """[..., vocabulary]: the ranks' parts of each row side by side."""
    if parallel_state.get_tensor_model_parallel_world_size() == 1:
        return logits
    return gather_from_tensor_model_parallel_region(logits)


@contextmanager
def draft_detached(model: list[MegatronModule]) -> Generator[None]:
    """The policy alone for as long as the block lasts, for what goes through its weights by name.

    Bridge's export stops at a weight that the Hugging Face model has no name for.
    """
    detached = [(policy, policy._modules.pop("draft")) for policy in unwrap_model(model) if hasattr(policy, "draft")]
    try:
        yield
    finally:
        for policy, draft in detached:
            policy.draft = draft

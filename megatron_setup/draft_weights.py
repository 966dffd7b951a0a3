"""A draft model's shape and weights from a Hugging Face EAGLE-3 folder. Owns its names and what becomes of each.

The names are those of the EAGLE authors' Llama drafts (`midlayer.*`), and of modelopt's and vLLM's (`layers.0.*`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from megatron.core import parallel_state
from safetensors.torch import load_file
from torch import Tensor

from launcher.errors import ConfigError
from launcher.schema.model import DraftConfig


@dataclass(frozen=True, kw_only=True)
class DraftShape:
    """Sizes of a draft; `has_d2t` where it knows fewer tokens than the policy."""

    num_layers: int
    num_attention_heads: int
    num_query_groups: int
    kv_channels: int
    ffn_hidden_size: int
    layernorm_epsilon: float
    rotary_base: float
    vocab_size: int
    has_d2t: bool


def read_shape(draft: DraftConfig, *, provider: Any, vocab_size: int) -> DraftShape:
    """A random draft has the policy's sizes (`vocab_size` is the policy's, padded), a stored one its config.json's.

    Raises ConfigError for a folder without config.json or with one that this draft cannot follow.
    """
    if draft.hf_path is None:
        return DraftShape(
            num_layers=draft.num_layers,
            num_attention_heads=provider.num_attention_heads,
            num_query_groups=provider.num_query_groups,
            kv_channels=provider.kv_channels,
            ffn_hidden_size=provider.ffn_hidden_size,
            layernorm_epsilon=provider.layernorm_epsilon,
            rotary_base=provider.rotary_base,
            vocab_size=vocab_size,
            has_d2t=False,
        )
    config = _read_config(Path(draft.hf_path))
    _check_config(config, draft=draft, hidden_size=provider.hidden_size, vocab_size=vocab_size)
    heads = config["num_attention_heads"]
    draft_vocab_size = config.get("draft_vocab_size") or config["vocab_size"]
    return DraftShape(
        num_layers=draft.num_layers,
        num_attention_heads=heads,
        num_query_groups=config.get("num_key_value_heads") or heads,
        kv_channels=config.get("head_dim") or config["hidden_size"] // heads,
        ffn_hidden_size=config["intermediate_size"],
        layernorm_epsilon=config["rms_norm_eps"],
        rotary_base=_rope(config)["rope_theta"],
        vocab_size=draft_vocab_size,
        has_d2t=draft_vocab_size != config["vocab_size"],
    )


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        return json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"error: model.draft.hf_path is {folder}, a local folder with a readable config.json is needed\n"
            f"  why:    {error}"
        ) from error


def _rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """`rope_parameters` since transformers 5; before it, `rope_theta` beside `rope_scaling`."""
    theta = {"rope_theta": config.get("rope_theta")}
    return {**theta, **(config.get("rope_parameters") or config.get("rope_scaling") or {})}


def _check_config(config: Mapping[str, Any], *, draft: DraftConfig, hidden_size: int, vocab_size: int) -> None:
    """Every number that must be the policy's or the run's; plain RoPE, as `DraftModel` has it."""
    rope = _rope(config)
    wanted: dict[str, tuple[Any, Any]] = {
        "hidden_size": (config.get("hidden_size"), hidden_size),
        "num_hidden_layers": (config.get("num_hidden_layers"), draft.num_layers),
        "rope_type": (rope.get("rope_type", rope.get("type", "default")), "default"),
    }
    wrong = [f"{name} is {found}, needed is {value}" for name, (found, value) in wanted.items() if found != value]
    needed = ("vocab_size", "num_attention_heads", "intermediate_size", "rms_norm_eps")
    wrong += [f"{name} is missing" for name in needed if name not in config]
    if rope["rope_theta"] is None:
        wrong.append("rope_theta is missing")
    if config.get("vocab_size", 0) > vocab_size:
        wrong.append(f"vocab_size is {config['vocab_size']}, the policy knows {vocab_size} tokens")
    if wrong:
        raise ConfigError(
            f"error: {draft.hf_path}/config.json does not fit this run's draft model\n  why:    {'; '.join(wrong)}"
        )


_LEFT_OUT = frozenset({"t2d", "embed_tokens.weight"})
"""`d2t` the other way round, and a copy of the policy's embedding, which is read itself."""

_LAYER = re.compile(r"(?:midlayer|layers)\.(?:(\d+)\.)?")


@torch.no_grad()
def load_weights(draft: torch.nn.Module, *, folder: Path) -> None:
    """Every weight of the draft from the folder's safetensors files; this rank's share where it is split.

    Raises ConfigError naming what is missing, what is not known, and weights of another shape.
    """
    files = sorted(folder.glob("*.safetensors"))
    found = {_plain(name): tensor for file in files for name, tensor in load_file(file).items()}
    tensors = {**dict(draft.named_parameters()), **dict(draft.named_buffers())}
    sources = {name: _source(name) for name in tensors}
    needed = {name for names in sources.values() for name in names}
    _check_names(found.keys() - _LEFT_OUT, needed=needed, folder=folder)
    wrong: list[str] = []
    for name, names in sources.items():
        weight = _megatron_weight(name, parts=[found[n] for n in names], groups=_groups(draft))
        if weight.shape == tensors[name].shape:
            tensors[name].copy_(weight)
        else:
            wrong.append(f"{' + '.join(names)} gives {list(weight.shape)}, the model has {list(tensors[name].shape)}")
    if wrong:
        raise ConfigError(f"error: {folder} holds a draft of another shape\n  why:    {'; '.join(wrong)}")


def _plain(name: str) -> str:
    """`midlayer.`, `midlayer.0.` and `model.layers.0.` are one: `layers.0.`."""
    return _LAYER.sub(lambda match: f"layers.{match[1] or 0}.", name.removeprefix("model."), count=1)


def _groups(draft: Any) -> int:
    return draft.config.num_query_groups


_OUTSIDE = {
    "fc.weight": ("fc.weight",),
    "decoder.final_layernorm.weight": ("norm.weight",),
    "output_layer.weight": ("lm_head.weight",),
    "d2t": ("d2t",),
}
_INSIDE = {
    "input_layernorm.enorm.weight": ("input_layernorm.weight",),
    "input_layernorm.hnorm.weight": ("hidden_norm.weight",),
    "self_attention.linear_qkv.layer_norm_weight": ("input_layernorm.weight",),
    "self_attention.linear_qkv.weight": (
        "self_attn.q_proj.weight",
        "self_attn.k_proj.weight",
        "self_attn.v_proj.weight",
    ),
    "self_attention.linear_proj.weight": ("self_attn.o_proj.weight",),
    "mlp.linear_fc1.layer_norm_weight": ("post_attention_layernorm.weight",),
    "mlp.linear_fc1.weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "mlp.linear_fc2.weight": ("mlp.down_proj.weight",),
}
"""The folder's names by the draft's own, of what is outside of the layers and of what is in each."""


def _source(name: str) -> tuple[str, ...]:
    layer = re.match(r"decoder\.layers\.(\d+)\.", name)
    if layer is None:
        return _OUTSIDE[name]
    return tuple(f"layers.{layer[1]}.{part}" for part in _INSIDE[name[layer.end() :]])


def _check_names(found: Iterable[str], *, needed: set[str], folder: Path) -> None:
    missing, unknown = sorted(needed - set(found)), sorted(set(found) - needed)
    if missing or unknown:
        raise ConfigError(
            f"error: {folder} does not hold this draft model\n"
            f"  why:    missing: {', '.join(missing) or 'nothing'}; not known: {', '.join(unknown) or 'nothing'}"
        )


def _megatron_weight(name: str, *, parts: list[Tensor], groups: int) -> Tensor:
    """The folder's parts as this rank's one weight."""
    last = name.removesuffix(".weight").rpartition(".")[2]
    if last == "linear_qkv":  # per query group: its queries, its keys, its values
        return _share(torch.cat([part.unflatten(0, (groups, -1)) for part in parts], dim=1).flatten(0, 1), dim=0)
    if last == "linear_fc1":
        return torch.cat([_share(part, dim=0) for part in parts])
    split = {"linear_proj": 1, "linear_fc2": 1, "output_layer": 0}
    return _share(parts[0], dim=split[last]) if last in split else parts[0]


def _share(weight: Tensor, *, dim: int) -> Tensor:
    """This tensor-parallel rank's part."""
    ranks = parallel_state.get_tensor_model_parallel_world_size()
    return weight.chunk(ranks, dim=dim)[parallel_state.get_tensor_model_parallel_rank()]

"""The model: where its weights come from, how its configuration is changed, and what is attached to it."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from launcher.schema.precision import Dtype


class CheckpointFormat(Enum):
    """Formats of a pretrained Megatron checkpoint: with Bridge's run_config.yaml, or Megatron-LM's torch_dist."""

    megatron_bridge = "megatron_bridge"
    megatron_lm = "megatron_lm"


class DropoutPosition(Enum):
    """`LoRA.dropout_position` of Bridge: before or after the low-rank product."""

    pre = "pre"
    post = "post"


class AdapterInit(Enum):
    """How Bridge fills a LoRA matrix."""

    xavier = "xavier"
    normal = "normal"
    kaiming = "kaiming"
    zero = "zero"


@dataclass(frozen=True, kw_only=True)
class PretrainedCheckpointConfig:
    """A Megatron checkpoint to start from instead of a converted Hugging Face one."""

    format: CheckpointFormat = CheckpointFormat.megatron_bridge
    """What the folder holds."""

    path: str | None = None
    """An iteration's folder, or a root whose newest iteration is taken. null: off, convert from Hugging Face."""


@dataclass(frozen=True, kw_only=True)
class PeftConfig:
    """LoRA, in the spelling of `megatron.bridge.peft.lora.LoRA`."""

    enabled: bool = False
    """Train low-rank adapters and freeze the model. false: off."""

    target_modules: list[str] = field(default_factory=lambda: ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"])
    """Linear layers that get an adapter; names or patterns with *."""

    exclude_modules: list[str] = field(default_factory=list[str])
    """Linear layers that get none; needs target_modules empty. Empty: off."""

    dim: int = 32
    """Rank of the adapters."""

    alpha: int = 32
    """Weight of the adapters: their product is scaled by alpha / dim."""

    dropout: float = 0.0
    """Dropout in the adapters. 0: off."""

    dropout_position: DropoutPosition = DropoutPosition.pre
    """Where that dropout acts."""

    lora_A_init_method: AdapterInit = AdapterInit.xavier  # noqa: N815 - upstream's spelling
    """First values of the matrix that goes down."""

    lora_B_init_method: AdapterInit = AdapterInit.zero  # noqa: N815 - upstream's spelling
    """First values of the matrix that goes up."""

    lora_dtype: Dtype | None = None
    """Number format of adapters beside plain torch linears, which Megatron's models have none of. null: the model's."""

    a2a_experimental: bool = False
    """Bridge's all-to-all communication between the two matrices."""


@dataclass(frozen=True, kw_only=True)
class DraftConfig:
    """An EAGLE-style draft model, trained beside the policy on its hidden states."""

    enabled: bool = False
    """false: off."""

    hf_path: str | None = None
    """A local Hugging Face folder with an EAGLE-3 draft's weights. null: random."""

    num_layers: int = 1
    """Decoder layers of the draft."""

    aux_layer_indices: list[int] | None = None
    """Policy layers, from 0 and ascending, whose outputs the draft reads. null: an early, a middle and a late one."""

    loss_weight: float = 1.0
    """Weight of the draft's loss beside the policy's."""


@dataclass(frozen=True, kw_only=True)
class ValueModelConfig:
    """A value model (one number per token), set up by the same pipeline as the policy."""

    enabled: bool = False
    """false: off."""

    hf_path: str | None = None
    """A Hugging Face folder or Hub id to start from. null: the policy's weights."""

    lr: float | None = None
    """Its learning rate. null: optimizer.lr."""

    micro_batch_size: int | None = None
    """Its sequences per forward pass. null: performance.micro_batch_size."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Exactly one of `hf_path` and `hf_config` is set."""

    name: str
    """A short label for folder names and reports."""

    hf_path: str | None = None
    """A local Hugging Face folder or a Hub id. null: the model is made from `hf_config` with random weights."""

    hf_config: dict[str, Any] = field(default_factory=dict[str, Any])
    """transformers' configuration of a random model (with `model_type`), in Hugging Face spelling. Empty: off."""

    init_seed: int = 0
    """Seed of the random weights of `hf_config`."""

    hf_config_overrides: dict[str, Any] = field(default_factory=dict[str, Any])
    """Changes to the checkpoint's config.json before conversion, in Hugging Face spelling. Empty: off."""

    model_overrides: dict[str, Any] = field(default_factory=dict[str, Any])
    """Fields of the Megatron-Bridge provider, merged last; keys that have a home in this schema are refused.
    Empty: off."""

    force_reconvert_from_hf: bool = False
    """Convert the Hugging Face checkpoint again although a finished conversion is in the cache."""

    pretrained_checkpoint: PretrainedCheckpointConfig = field(default_factory=PretrainedCheckpointConfig)
    """A Megatron checkpoint to start from."""

    seq_length: int = 128
    """Longest sequence of training (prompt and response), in tokens."""

    attention_dropout: float = 0.0
    """Dropout of attention weights. 0: off; no log-probability of generation has dropout in it."""

    hidden_dropout: float = 0.0
    """Dropout of hidden states. 0: off, for the same reason."""

    make_vocab_size_divisible_by: int | None = None
    """The vocabulary is padded to a multiple of this times the tensor-parallel size. null: the provider's."""

    perform_initialization: bool | None = None
    """Fill weights with random numbers before a checkpoint is loaded over them. null: the provider's."""

    freeze_language_model: bool | None = None
    """Vision-language models: do not train the language model. null: the provider's."""

    freeze_vision_model: bool | None = None
    """Vision-language models: do not train the vision tower. null: the provider's."""

    freeze_vision_projection: bool | None = None
    """Vision-language models: do not train the projection between the two. null: the provider's."""

    reference_model: bool = False
    """Keep the first weights in host memory as the reference policy."""

    peft: PeftConfig = field(default_factory=PeftConfig)
    """LoRA adapters."""

    draft: DraftConfig = field(default_factory=DraftConfig)
    """Draft model of speculative decoding."""

    value: ValueModelConfig = field(default_factory=ValueModelConfig)
    """Value model."""

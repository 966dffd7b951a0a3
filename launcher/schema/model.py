"""The model: where its weights come from and how its Hugging Face configuration is changed."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Exactly one of `hf_path` and `hf_config` is set."""

    name: str
    """A short label for folder names and reports."""

    hf_path: str | None = None
    """A local Hugging Face folder or a Hub id. null: the model is made from `hf_config` with random weights."""

    hf_config: dict[str, Any] = field(default_factory=dict)
    """transformers' configuration of a random model (with `model_type`), in Hugging Face spelling. Empty: off."""

    init_seed: int = 0
    """Seed of the random weights of `hf_config`."""

    hf_config_overrides: dict[str, Any] = field(default_factory=dict)
    """Changes to the checkpoint's config.json before conversion, in Hugging Face spelling."""

    model_overrides: dict[str, Any] = field(default_factory=dict)
    """Fields of the Megatron-Bridge provider, merged last; keys that have a home in this schema are refused."""

    force_reconvert_from_hf: bool = False
    """Convert the Hugging Face checkpoint again although a finished conversion is in the cache."""

    seq_length: int = 128
    """Longest sequence of training (prompt and response), in tokens."""

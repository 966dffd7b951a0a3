"""What a job needs beside the model: the tokenizer that fits it, the vocabulary with its padding, the replicas.

Owns those. Loading and building are over when this runs; the way back to Hugging Face is `export`, late gathering of
weights is `late_gather`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatron.core import parallel_state
from megatron.training.vocab_utils import calculate_padded_vocab_size
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from launcher.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Finished:
    """What the set-up ends with, beside model and optimizer."""

    tokenizer: PreTrainedTokenizerBase

    padded_vocab_size: int
    """Rows of the embedding over all tensor-parallel ranks; ids from the vocabulary's size on are padding."""

    data_parallel_size: int


def finish(provider: Any, *, hf_folder: Path) -> Finished:
    """Raises ConfigError where the tokenizer cannot be loaded or its ids do not fit the model."""
    padded = vocab_size = provider.vocab_size
    if provider.should_pad_vocab:
        padded = calculate_padded_vocab_size(
            vocab_size, provider.make_vocab_size_divisible_by, provider.tensor_model_parallel_size
        )
    return Finished(
        tokenizer=load_tokenizer(hf_folder, vocab_size=vocab_size),
        padded_vocab_size=padded,
        data_parallel_size=parallel_state.get_data_parallel_world_size(),
    )


def load_tokenizer(folder: Path, *, vocab_size: int) -> PreTrainedTokenizerBase:
    """The checkpoint's tokenizer. Raises ConfigError where it cannot be loaded or its ids do not fit the model."""
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(str(folder))
    except (OSError, ValueError) as error:
        raise ConfigError(f"error: {folder} holds no tokenizer that can be loaded: {error}") from error
    if len(tokenizer) > vocab_size:
        raise ConfigError(
            f"error: the tokenizer in {folder} has {len(tokenizer)} ids, the model's vocabulary has {vocab_size}\n"
            "  why:    it is another model's: an id beyond the embedding would be out of range"
        )
    return tokenizer

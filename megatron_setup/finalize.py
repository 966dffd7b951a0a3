"""What a job needs beside the model: the tokenizer that fits it, Bridge for the way back, and how weights are gathered.

Owns those. Loading and building are over when this runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatron.bridge import AutoBridge
from megatron.bridge.training.train import should_disable_forward_pre_hook
from megatron.core import parallel_state
from megatron.training.vocab_utils import calculate_padded_vocab_size
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from launcher.errors import ConfigError
from launcher.schema import RunConfig


@dataclass(frozen=True, kw_only=True)
class Finished:
    """What the set-up ends with, beside model and optimizer."""

    tokenizer: PreTrainedTokenizerBase

    padded_vocab_size: int
    """Rows of the embedding over all tensor-parallel ranks; ids from the tokenizer's size on are never sampled data."""

    bridge: AutoBridge[Any]
    """Converts the weights back to Hugging Face format."""

    gathers_late: bool
    """Updated parameters are gathered by hooks of the next forward (`overlap_param_gather`): whoever reads weights
    before that forward has to force the gather."""

    data_parallel_size: int


def finish(config: RunConfig, *, provider: Any, hf_folder: Path) -> Finished:
    """Raises ConfigError where the tokenizer cannot be loaded or its ids do not fit the model."""
    optimizer = config.optimizer
    vocab_size = provider.vocab_size
    return Finished(
        tokenizer=load_tokenizer(hf_folder, vocab_size=vocab_size),
        padded_vocab_size=calculate_padded_vocab_size(
            vocab_size, provider.make_vocab_size_divisible_by, provider.tensor_model_parallel_size
        )
        if provider.should_pad_vocab
        else vocab_size,
        bridge=AutoBridge.from_hf_pretrained(str(hf_folder)),
        gathers_late=should_disable_forward_pre_hook(
            False, optimizer.use_distributed_optimizer, optimizer.overlap_param_gather
        ),
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

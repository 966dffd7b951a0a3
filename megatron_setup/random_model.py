"""A Hugging Face model with random weights and a small byte-level BPE tokenizer, made locally, without a download."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from launcher.errors import ConfigError

_END_OF_TEXT, _IM_START, _IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_CORPUS = (
    "The quick brown fox jumps over the lazy dog.",
    "Pack my box with five dozen liquor jugs: 0123456789 + - * / = ?",
    "Training and generation agree when every sum is added in the same order.",
)


def make_random_hf_model(folder: Path, *, hf_config: Mapping[str, Any], dtype: str, seed: int) -> None:
    """Write config, safetensors weights of `dtype` ("bfloat16", "float32") and a tokenizer to `folder`.

    `hf_config` is transformers' configuration with `model_type`. The same arguments give the same bytes. `folder`
    appears only when it is complete: a killed run leaves a sibling `<folder>.partial`, which the next one removes.
    Raises ConfigError where the vocabulary is too small for bytes and special tokens, or transformers does not know
    the model type.
    """
    try:
        config = AutoConfig.for_model(**hf_config)
    except ValueError as error:
        raise ConfigError(f"error: model.hf_config cannot be built\n  why:    {error}") from error
    tokenizer = _train_tokenizer(vocab_size=config.vocab_size)
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(config, name, getattr(tokenizer, name))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
        _randomise(model)
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    partial.rename(folder)


@torch.no_grad()
def _randomise(model: PreTrainedModel) -> None:
    """Move norms away from 1 and biases away from 0, where a weight that is never loaded would not show."""
    for name, tensor in _vectors(model):
        low = 0.5 if "norm" in name else -0.5
        tensor.uniform_(low, low + 1)


def _vectors(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """Norm weights, biases, and a router's correction bias, which some models keep as a buffer."""
    for name, param in model.named_parameters():
        if param.dim() == 1:
            yield name, param
    for name, buffer in model.named_buffers():
        if name.endswith("bias"):
            yield name, buffer


def _train_tokenizer(*, vocab_size: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE over a few sentences; at most `vocab_size` tokens, far fewer for a large one."""
    special_tokens = [_END_OF_TEXT, _IM_START, _IM_END]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    needed = len(alphabet) + len(special_tokens)
    if vocab_size < needed:
        raise ConfigError(
            f"error: model.hf_config.vocab_size is {vocab_size}, the byte-level tokenizer needs {needed}\n"
            f"  why:    {len(alphabet)} bytes and {len(special_tokens)} special tokens\n"
            f"hint: model.hf_config.vocab_size={needed}"
        )
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=special_tokens, initial_alphabet=alphabet)
    bpe.train_from_iterator(_CORPUS, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token=_END_OF_TEXT, eos_token=_IM_END, pad_token=_END_OF_TEXT
    )
    tokenizer.chat_template = _CHAT_TEMPLATE
    return tokenizer

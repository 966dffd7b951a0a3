"""Prompts as token ids: random ones of mixed lengths, or a person's own from a .jsonl file."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from launcher.errors import ConfigError


def random_prompts(num: int, *, min_tokens: int, max_tokens: int, vocab_size: int, seed: int) -> list[list[int]]:
    """`num` prompts of random ids below `vocab_size`; the shortest and the longest length are always among them."""
    generator = random.Random(seed)
    lengths = [min_tokens, max_tokens] + [generator.randint(min_tokens, max_tokens) for _ in range(num - 2)]
    return [[generator.randrange(vocab_size) for _ in range(n)] for n in lengths[:num]]


def read_prompts(
    path: Path, *, tokenizer: PreTrainedTokenizerBase, seq_length: int, max_new_tokens: int
) -> list[list[int]]:
    """One prompt a line: {"text": "..."} or {"messages": [{"role": ..., "content": ...}]}; blank lines are skipped.

    Messages go through the model's chat template. Raises ConfigError naming the file and the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"error: job.prompts is {path}, it cannot be read: {error}") from None
    prompts: list[list[int]] = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            where = f"{path}:{number}"
            prompts.append(
                _read_line(line, where=where, tokenizer=tokenizer, seq_length=seq_length, max_new_tokens=max_new_tokens)
            )
    if not prompts:
        raise ConfigError(f"error: job.prompts is {path}, it holds no prompt")
    return prompts


def _read_line(
    line: str, *, where: str, tokenizer: PreTrainedTokenizerBase, seq_length: int, max_new_tokens: int
) -> list[int]:
    try:
        ids = _ids_of(json.loads(line), tokenizer=tokenizer)
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"error: {where} is no prompt: {error}\n"
            '  wanted: {"text": "..."} or {"messages": [{"role": "user", "content": "..."}]}'
        ) from None
    if not 0 < len(ids) <= seq_length - max_new_tokens:
        raise ConfigError(
            f"error: {where} has {len(ids)} tokens, between 1 and {seq_length - max_new_tokens} fit\n"
            "  why:    prompt and generation.max_new_tokens together must fit model.seq_length\n"
            f"hint: model.seq_length={len(ids) + max_new_tokens}"
        )
    return ids


def _ids_of(entry: Any, *, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    if not isinstance(entry, dict) or len(entry.keys() & {"text", "messages"}) != 1:
        raise ValueError("a line holds either text or messages")
    if "text" in entry:
        if not isinstance(entry["text"], str):
            raise TypeError("text is not a string")
        return tokenizer.encode(entry["text"])
    if tokenizer.chat_template is None:
        raise ValueError("the model's tokenizer has no chat template")
    messages = [{"role": str(m["role"]), "content": str(m["content"])} for m in entry["messages"]]
    text = str(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))
    return tokenizer.encode(text, add_special_tokens=False)  # the template has written them

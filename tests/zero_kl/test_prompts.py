"""Prompts from a file through a real tokenizer, and random ones."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from launcher.errors import ConfigError
from zero_kl.prompts import random_prompts, read_prompts


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte, with a chat template that writes the role before the text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytes_only = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_only.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=bytes_only)
    fast.chat_template = "{% for m in messages %}{{ m['role'] }}:{{ m['content'] }};{% endfor %}"
    return fast


def _file(folder: Path, *lines: object) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def test_texts_and_messages(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    path = _file(tmp_path, {"text": "ab"}, "", {"messages": [{"role": "user", "content": "c"}]})
    texts = [tokenizer.decode(ids) for ids in read_prompts(path, tokenizer=tokenizer, seq_length=20, max_new_tokens=4)]
    assert texts == ["ab", "user:c;"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("not json", "is no prompt"),
        ({"text": 7}, "text is not a string"),
        ({"text": "a", "messages": []}, "either text or messages"),
        ({"prompt": "a"}, "either text or messages"),
        ({"messages": [{"role": "user"}]}, "'content'"),
        ({"text": ""}, "has 0 tokens"),
        ({"text": "a" * 17}, "hint: model.seq_length=21"),
    ],
)
def test_a_bad_line_is_named(line: object, said: str, tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    path = _file(tmp_path, {"text": "fine"}, line)
    with pytest.raises(ConfigError) as caught:
        read_prompts(path, tokenizer=tokenizer, seq_length=20, max_new_tokens=4)
    assert f"{path}:2" in str(caught.value)
    assert said in str(caught.value)


def test_messages_need_a_chat_template(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = None
    with pytest.raises(ConfigError, match="no chat template"):
        read_prompts(_file(tmp_path, {"messages": []}), tokenizer=tokenizer, seq_length=20, max_new_tokens=4)


@pytest.mark.parametrize("content", [None, ""])
def test_no_file_and_no_prompt(content: str | None, tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    path = tmp_path / "prompts.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=r"prompts\.jsonl"):
        read_prompts(path, tokenizer=tokenizer, seq_length=20, max_new_tokens=4)


def test_random_prompts_repeat_and_hold_both_ends() -> None:
    prompts = random_prompts(8, min_tokens=1, max_tokens=5, vocab_size=10, seed=3)
    assert prompts == random_prompts(8, min_tokens=1, max_tokens=5, vocab_size=10, seed=3)
    assert prompts != random_prompts(8, min_tokens=1, max_tokens=5, vocab_size=10, seed=4)
    assert {len(p) for p in prompts} >= {1, 5}
    assert all(0 <= token < 10 for p in prompts for token in p)

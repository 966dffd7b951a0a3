"""The same question has the same name; a different one has another."""

from pathlib import Path

import pytest

from launcher.compose import compose
from launcher.identity import digest, run_name


def _digest(*words: str) -> str:
    return digest(compose(words).config)


@pytest.mark.parametrize(
    "words",
    [
        ("optimizer.lr=1e-3",),  # the default, typed
        ("model=tiny", "precision=bf16"),
        ("force=true",),
        ("output_dir=/elsewhere",),
        ("job.name=mine",),
        ("cluster.timeout_min=5",),
    ],
)
def test_the_same_question(words: tuple[str, ...]) -> None:
    assert _digest(*words) == _digest()


@pytest.mark.parametrize(
    "word", ["optimizer.lr=2e-3", "job.seed=1", "model=tiny_moe", "+preset=zero_kl_cpu", "cluster.num_processes=2"]
)
def test_another_question(word: str) -> None:
    assert _digest(word) != _digest()


def test_the_order_of_words_does_not_matter() -> None:
    assert _digest("job.seed=1", "optimizer.lr=2e-3") == _digest("optimizer.lr=2e-3", "job.seed=1")


@pytest.mark.parametrize(
    ("words", "name"), [((), "mismatch-tiny"), (("job.name=a/b c",), "a_b_c"), (("job=convert",), "convert-tiny")]
)
def test_name(words: tuple[str, ...], name: str) -> None:
    assert run_name(compose(words).config) == name


def test_other_prompts_are_another_question(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"text": "one"}')
    before = _digest(f"job.prompts={prompts}")
    prompts.write_text('{"text": "two"}')
    assert _digest(f"job.prompts={prompts}") != before


def test_other_weights_are_another_question(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"one")
    before = _digest(f"model={tmp_path}")
    (tmp_path / "model.safetensors").write_bytes(b"other")
    assert _digest(f"model={tmp_path}") != before

"""The random Hugging Face model: loadable, reproducible, nothing left at 1 or 0, and never half-written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from launcher.errors import ConfigError
from tests.hf_configs import HF_CONFIGS

Make = Callable[..., Path]


@pytest.fixture
def make(cpu_platform: None, tmp_path: Path) -> Make:
    """Makes a model of a configuration by name; the platform comes first, it decides what transformers imports."""
    from megatron_setup.random_model import make_random_hf_model

    def make_one(name: str, *, folder: str = "model", dtype: str = "float32", seed: int = 0, **changes: Any) -> Path:
        hf_config = HF_CONFIGS[name] | changes
        make_random_hf_model(tmp_path / folder, hf_config=hf_config, dtype=dtype, seed=seed)
        return tmp_path / folder

    return make_one


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", HF_CONFIGS)
def test_transformers_loads_the_model_and_the_tokenizer(name: str, dtype: str, make: Make) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = make(name, dtype=dtype)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.dtype == getattr(torch, dtype)
    assert len(tokenizer) <= model.config.vocab_size
    assert model.config.eos_token_id == tokenizer.eos_token_id
    text = "Δ = 0 — bit for bit\n"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    messages = [{"role": "user", "content": "hi"}]
    chat = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert chat == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("name", HF_CONFIGS)
def test_no_weight_hides_that_it_was_never_loaded(name: str, make: Make) -> None:
    for key, tensor in load_file(make(name) / "model.safetensors").items():
        assert tensor.unique().numel() > tensor.numel() * 0.9, key


def test_the_seed_decides_every_byte_and_the_callers_random_state_stays(make: Make) -> None:
    state = torch.random.get_rng_state()
    first, again, other = (make("qwen3", folder=f"seed_{i}", seed=seed) for i, seed in enumerate((1, 1, 2)))
    weights = [(folder / "model.safetensors").read_bytes() for folder in (first, again, other)]
    assert weights[0] == weights[1] != weights[2]
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_killed_run_leaves_nothing_that_looks_finished(make: Make, tmp_path: Path) -> None:
    left_behind = tmp_path / "model.partial"
    left_behind.mkdir()
    (left_behind / "half.safetensors").write_text("{")
    folder = make("qwen3")
    assert not left_behind.exists()
    assert not (folder / "half.safetensors").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [({"vocab_size": 100}, "hint: model.hf_config.vocab_size=259"), ({"model_type": "qwen33"}, "qwen33")],
    ids=str,
)
def test_what_cannot_be_made_is_refused(change: dict[str, Any], message: str, make: Make, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        make("qwen3", **change)
    assert not list(tmp_path.iterdir())

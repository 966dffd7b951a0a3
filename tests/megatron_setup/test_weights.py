"""Wrong checkpoints: one error that names the file and the weight, and nothing loaded."""

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from launcher.errors import ConfigError
from tests.hf_configs import HF_CONFIGS
from tests.megatron_setup.sources import imported, loaded, make_hf_folder
from tests.worlds import run_world

pytestmark = pytest.mark.usefixtures("cpu_platform")

Words = list[str]


@pytest.fixture(scope="module")
def words(cpu_platform: None, tmp_path_factory: pytest.TempPathFactory) -> Words:
    """The command line of a tiny model whose conversion is there."""
    root = tmp_path_factory.mktemp("weights")
    words = ["model=hf", f"model.hf_path={root / 'hf'}", f"output_dir={root / 'outputs'}"]
    run_world(make_hf_folder, num_ranks=1, folder=root / "hf", hf_config=HF_CONFIGS["llama"])
    run_world(imported, num_ranks=1, joined=False, words=words)
    return words


def iteration_of(words: Words) -> Path:
    from launcher.compose import compose
    from megatron_setup.model_source import resolve_source

    return resolve_source(compose(words).config).iteration


def refusal(words: Sequence[str]) -> str:
    try:
        loaded(words)
    except ConfigError as error:
        return str(error)
    return ""


def refused(words: Words, *, checkpoint: Path, overrides: Sequence[str] = ()) -> str:
    """What loading the checkpoint as Megatron-LM's says, whose architecture is config.json's with the overrides."""
    from megatron_setup.hf_folder import ensure_hf_folder

    pretrained = [f"model.pretrained_checkpoint.path={checkpoint}", "model.pretrained_checkpoint.format=megatron_lm"]
    typed = [*words, *pretrained, *(f"++model.hf_config_overrides.{override}" for override in overrides)]
    if overrides:
        from launcher.compose import compose

        ensure_hf_folder(compose(typed).config)
    (text,) = run_world(refusal, num_ranks=1, words=typed)
    return text


def _delete(folder: Path) -> None:
    (folder / "__0_0.distcp").unlink()


def _cut(folder: Path) -> None:
    path = folder / "__0_0.distcp"
    os.truncate(path, path.stat().st_size - 100)


def _cut_metadata(folder: Path) -> None:
    os.truncate(folder / ".metadata", 100)


def _scribble(folder: Path) -> None:
    (folder / ".metadata").write_bytes(b"no pickle at all")


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (_delete, "error: {folder}/__0_0.distcp is missing\n  why:    decoder.layers.self_attention."),
        (_cut, "error: {folder}/__0_0.distcp is cut off: it has "),
        (_cut_metadata, "error: {folder}/.metadata cannot be read\n  why:    "),
        (_scribble, "error: {folder}/.metadata cannot be read\n  why:    UnpicklingError: "),
    ],
)
def test_damaged_files(damage: Callable[[Path], None], expected: str, words: Words, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(iteration_of(words), folder)
    damage(folder)
    assert refused(words, checkpoint=folder).startswith(expected.format(folder=folder))


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("vocab_size=512", "has another vocabulary\n  why:    embedding.word_embeddings.weight has 384 rows in it; a "),
        ("vocab_size=200", "padded to a multiple of 128 on each of 1 rank(s), has 200 to 327"),
        (
            "intermediate_size=256",
            "mlp.linear_fc1.weight has the shape [2, 256, 64] in it and [2, 512, 64] in the model",
        ),
        ("num_hidden_layers=3", "has the shape [2, "),
        ("tie_word_embeddings=true", ""),
        ("model_type=qwen3", "q_layernorm.weight from model not in state dict"),
    ],
)
def test_another_model(override: str, expected: str, words: Words) -> None:
    """Tied embeddings need less than there is, and load."""
    overrides = [override, "architectures=[Qwen3ForCausalLM]"] if "qwen3" in override else [override]
    text = refused(words, checkpoint=iteration_of(words), overrides=overrides)
    assert expected in text
    assert bool(text) == bool(expected)
    assert len(text) < 500


def test_padding_is_no_other_vocabulary(words: Words) -> None:
    """384 rows may be 300 tokens, padded."""
    assert refused(words, checkpoint=iteration_of(words), overrides=["vocab_size=300"]) == ""


def _save_without_extra_state(words: Words, *, folder: Path) -> None:
    from megatron.core import dist_checkpointing
    from megatron.core.utils import unwrap_model

    (model,) = unwrap_model(loaded(words))
    kept = {key: part for key, part in model.sharded_state_dict().items() if "_extra_state" not in key}
    folder.mkdir()
    dist_checkpointing.save({"model": kept}, str(folder))


def test_absent_fp8_state(words: Words, tmp_path: Path) -> None:
    """Every linear of the reference backend keeps an (empty) extra state, as Transformer Engine's do for FP8."""
    run_world(_save_without_extra_state, num_ranks=1, words=words, folder=tmp_path / "plain")
    text = refused(words, checkpoint=tmp_path / "plain")
    assert text.startswith(f"error: {tmp_path / 'plain'} has no FP8 state\n  why:    decoder.layers.")
    assert "_extra_state/shard_0_2 is not in it (and 7 more)" in text

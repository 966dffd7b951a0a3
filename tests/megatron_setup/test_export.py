"""Hugging Face to Megatron and back through the pipeline's own functions, in several layouts, to the bit."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.hf_configs import HF_CONFIGS
from tests.megatron_setup.sources import exported, imported, make_hf_folder, saved_by_megatron_lm
from tests.worlds import run_world

pytestmark = pytest.mark.usefixtures("cpu_platform")

Words = Callable[..., list[str]]

IN_FP32_BY_MEGATRON = {"model.layers.1.mlp.gate.e_score_correction_bias"}
"""DeepSeek-V3's bias per expert: megatron-core keeps it in fp32, and so does the export. Same values, other bytes."""


@pytest.fixture(scope="module")
def words_of(cpu_platform: None, tmp_path_factory: pytest.TempPathFactory) -> Words:
    """The command line of a model by name, its Hugging Face folder made and converted, once."""

    @cache
    def prepare(name: str) -> list[str]:
        root = tmp_path_factory.mktemp(name)
        words = ["model=hf", f"model.hf_path={root / 'hf'}", f"output_dir={root / 'outputs'}"]
        run_world(make_hf_folder, num_ranks=1, folder=root / "hf", hf_config=HF_CONFIGS[name])
        run_world(imported, num_ranks=1, joined=False, words=words)
        return words

    return prepare


def folder_of(words: list[str]) -> Path:
    return Path(next(word for word in words if word.startswith("model.hf_path=")).partition("=")[2])


def differing(one: Path, other: Path) -> set[str]:
    """Weights whose bytes or types differ; those whose values differ are marked."""
    import torch
    from safetensors.torch import load_file

    a, b = load_file(one / "model.safetensors"), load_file(other / "model.safetensors")
    assert a.keys() == b.keys()
    same_values = all(torch.equal(a[name].double(), b[name].double()) for name in a)
    assert same_values
    return {name for name in a if a[name].dtype != b[name].dtype}


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        *((name, []) for name in HF_CONFIGS),
        ("qwen3", ["parallelism=tp2"]),
        ("llama", ["parallelism=pp2"]),
        ("qwen3_moe", ["parallelism=ep2"]),
        ("deepseek_v3", ["parallelism=ep2"]),
    ],
)
def test_the_same_bits_come_back(name: str, layout: list[str], words_of: Words, tmp_path: Path) -> None:
    words, target = words_of(name), tmp_path / "exported"
    run_world(exported, num_ranks=2 if layout else 1, words=[*words, *layout], target=target)
    assert differing(folder_of(words), target) == (IN_FP32_BY_MEGATRON if name == "deepseek_v3" else set())


def test_the_other_files_are_copied_byte_for_byte(words_of: Words, tmp_path: Path) -> None:
    words, target = words_of("qwen2"), tmp_path / "exported"
    target.mkdir()
    (target / "of_before.txt").touch()
    left_behind = tmp_path / "exported.partial"
    left_behind.mkdir()
    (left_behind / "half.safetensors").touch()
    run_world(exported, num_ranks=1, words=words, target=target)
    source = folder_of(words)
    assert {p.name for p in target.iterdir()} == {p.name for p in source.iterdir()}
    assert not left_behind.exists()
    for path in source.iterdir():
        if path.suffix != ".safetensors":
            assert (target / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.parametrize(("num_ranks", "common_pt"), [(1, True), (2, False)])
def test_a_checkpoint_of_megatron_lm_gives_its_bits(
    num_ranks: int, common_pt: bool, words_of: Words, tmp_path: Path
) -> None:
    """Written with one or two tensor-parallel ranks, read with one."""
    words, root = words_of("qwen3"), tmp_path / "megatron_lm"
    layout = ["parallelism=tp2"] if num_ranks == 2 else []
    run_world(saved_by_megatron_lm, num_ranks=num_ranks, words=[*words, *layout], root=root, common_pt=common_pt)
    pretrained = [f"model.pretrained_checkpoint.path={root}", "model.pretrained_checkpoint.format=megatron_lm"]
    run_world(exported, num_ranks=1, words=[*words, *pretrained], target=tmp_path / "exported")
    assert (root / "iter_0000010" / "common.pt").exists() == common_pt
    assert differing(folder_of(words), tmp_path / "exported") == set()

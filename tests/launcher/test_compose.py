"""Composition: what it gives, that it is Hydra's, that points of a sweep do not touch each other, what it imports."""

import shutil
import subprocess
import sys
from pathlib import Path

import hydra
import pytest
from omegaconf import OmegaConf, open_dict

from launcher.compose import CONF, PRIMARY, _compose_base, compose, group_options, layers
from launcher.errors import ConfigError
from launcher.schema import Backend, PlatformKind, RunConfig
from launcher.schema.cluster import ClusterKind

ROOT = CONF.parent

SAME_AS_HYDRA: list[list[str]] = [
    [],
    ["+preset=zero_kl_cpu"],
    ["+preset=zero_kl", "parallelism=tp2", "optimizer.lr=3e-4", "job.name='a b'"],
    ["model=tiny_moe", "parallelism=ep2", "parallelism.data_parallel_size=2"],
    ["+model.hf_config.rope_theta=10000.0", "model.hf_config.hidden_size=32", "~model.hf_config.head_dim"],
    ["+cluster.sbatch.time=10", "~cluster.sbatch.time", "cluster.timeout_min=10"],
    ["++model.hf_config.hidden_size=32", "++job.seed=7", "+model.model_overrides={a:{b:[1,2]}}"],
    ["parallelism={tensor_model_parallel_size:2,sequence_parallel:true}", "force=true", "output_dir=/tmp/x"],
    ["job.name=${model.name}", "job.seed=${generation.max_tokens}", "model.seq_length=256"],
    [
        "performance.recompute_modules=[core_attn,mlp]",
        "model.peft.target_modules=[linear_qkv]",
        "cluster.setup=['a=b']",
    ],
    ["zero_kl.backend=cpu_reference", "precision.fp8=null", "optimizer.overlap_param_gather=yes"],
]


@pytest.mark.parametrize("words", SAME_AS_HYDRA, ids=" ".join)
def test_the_result_is_what_hydra_composes_of_the_same_words(words: list[str]) -> None:
    ours = compose(words)
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        theirs = hydra.compose(PRIMARY, words)
    assert ours.config == OmegaConf.to_object(theirs)
    assert ours.overrides == tuple(words)


def test_nothing_typed_is_an_ordinary_run_on_this_machine() -> None:
    composed = compose([])
    assert isinstance(composed.config, RunConfig)
    assert composed.config.platform.kind is PlatformKind.cpu
    assert composed.config.zero_kl.backend is Backend.none
    assert composed.choices["model"] == composed.config.model.name == "tiny"
    assert set(composed.choices) == set(group_options()) - {"preset"}


def test_a_preset_chooses_options_and_a_word_beats_it() -> None:
    composed = compose(["cluster=local", "+preset=zero_kl"])
    assert composed.choices["preset"] == "zero_kl"
    assert composed.config.platform.kind is PlatformKind.blackwell
    assert composed.config.cluster.kind is ClusterKind.local


def test_the_same_word_twice_counts_once() -> None:
    assert compose(["+preset=zero_kl_cpu", "+preset=zero_kl_cpu"]).config == compose(["+preset=zero_kl_cpu"]).config


def test_points_of_a_sweep_share_a_base_and_do_not_change_it() -> None:
    first = compose(["model=tiny"]).config
    other = compose(["model=tiny", "model.hf_config.hidden_size=32", "job.seed=7"]).config
    third = compose(["model=tiny", "force=true", "output_dir=x"]).config
    assert (other.model.hf_config["hidden_size"], other.job.seed, other.force) == (32, 7, False)
    assert (third.model.hf_config["hidden_size"], third.force, third.output_dir) == (64, True, "x")
    assert other.parallelism is first.parallelism
    assert compose(["model=tiny"]).config == first


@pytest.mark.parametrize(
    ("before", "words"),
    [
        (("job.seed=1",), ("job.seed=1", "output_dir=b")),
        (("job.seed=1",), ("job.seed=1", "optimizer.lr=1")),
        (("job.seed=1",), ("job.seed=1", "job.name=a")),
        (("job.seed=1",), ("job.seed=1", "optimizer.lr=${job.seed}")),
        (("model=hf", "model.hf_path=a/b"), ("model=hf", "model.hf_path=a/b", "force=true")),
    ],
)
def test_a_part_that_was_made_before_changes_nothing(before: tuple[str, ...], words: tuple[str, ...]) -> None:
    """The points of a sweep share parts."""
    _compose_base.cache_clear()
    compose(before)
    found = compose(words).config
    _compose_base.cache_clear()
    assert found == compose(words).config


def test_a_file_that_refers_to_another_value_follows_it(tmp_path: Path) -> None:
    conf = tmp_path / "conf"
    shutil.copytree(CONF, conf)
    (conf / "job" / "follows.yaml").write_text("kind: mismatch\nseed: ${generation.max_tokens}\n")
    assert compose(["job=follows", "generation.max_tokens=77"], conf=conf).config.job.seed == 77
    assert compose(["job=follows", "generation.max_tokens=78"], conf=conf).config.job.seed == 78


@pytest.mark.parametrize("spelling", ["{folder}", "./{name}", "{name}"])
def test_a_folder_is_a_model(spelling: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "my model"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    word = "model=" + spelling.format(folder=folder, name=folder.name)
    composed = compose([word])
    assert composed.config.model.hf_path == str(folder)
    assert composed.config.model.name == "my model"
    assert composed.config.model.hf_config == {}
    assert composed.choices["model"] == "hf"
    assert composed.overrides == (word,)


def test_an_option_is_preferred_to_a_folder_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny").mkdir()
    monkeypatch.chdir(tmp_path)
    assert compose(["model=tiny"]).config.model.hf_path is None
    assert compose(["model=./tiny"]).config.model.hf_path == str(tmp_path / "tiny")


def test_a_hub_id_is_a_model() -> None:
    model = compose(["model=Qwen/Qwen3-0.6B", "model.seq_length=64"]).config.model
    assert (model.hf_path, model.name, model.seq_length) == ("Qwen/Qwen3-0.6B", "Qwen3-0.6B", 64)


def test_an_option_that_leaves_a_key_open_is_refused_until_it_is_set() -> None:
    with pytest.raises(ConfigError, match=r"model\.hf_path is required and not set"):
        compose(["model=hf"])
    assert compose(["model=hf", "model.hf_path=/x"]).config.model.hf_path == "/x"


def test_layers_are_the_files_in_the_order_of_merging() -> None:
    files = [str(layer.file.relative_to(CONF)) for layer in layers(["+preset=zero_kl", "parallelism=tp2"])]
    assert files[0] == "model/qwen3_1b.yaml"
    assert files[-1] == "preset/zero_kl.yaml"
    assert "parallelism/tp2.yaml" in files
    assert "parallelism/single.yaml" not in files


def test_composing_leaves_no_hydra_behind() -> None:
    compose([])
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        node = hydra.compose(PRIMARY, [])
    with open_dict(node):
        node.job.seed = 99
    assert compose([]).config.job.seed != 99


def test_composing_imports_no_torch_and_no_foreign_plugin() -> None:
    code = (
        "import sys; from launcher.compose import compose; compose(['+preset=zero_kl']);"
        "print({'torch', 'megatron', 'transformers', 'multistorageclient', 'hydra_plugins'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "set()"

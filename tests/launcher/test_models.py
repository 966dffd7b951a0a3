"""`model=FOLDER`: local Hugging Face checkpoints of several architectures through the whole experiment."""

from pathlib import Path

import pytest

from launcher.errors import ExitCode
from launcher.files import read_json
from megatron_setup.random_model import make_random_hf_model
from tests.hf_configs import HF_CONFIGS
from tests.launcher.runs import launch, only_attempt

SHORT = ("job.num_prompts=6", "job.num_steps=1", "generation.max_new_tokens=16")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "qwen3_moe"])
def test_zero_from_a_folder(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    make_random_hf_model(folder, hf_config=HF_CONFIGS[name], dtype="bfloat16", seed=0)
    outputs = tmp_path / "outputs"
    done = launch("+preset=zero_kl_cpu", f"model={folder}", *SHORT, f"output_dir={outputs}")
    assert done.code == ExitCode.OK, done.text
    report = read_json(only_attempt(outputs).report)
    assert report["verdict"] == "ZERO"
    assert report["total"]["n"] == report["total"]["n_exact"] == 6 * 16 * 2

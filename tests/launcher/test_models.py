"""`model=FOLDER`: local Hugging Face checkpoints of several architectures through the whole experiment."""

import subprocess
import sys
from pathlib import Path

import pytest

from launcher.errors import ExitCode
from launcher.files import read_json
from tests.hf_configs import HF_CONFIGS
from tests.launcher.runs import ROOT, launch, only_attempt

SHORT = ("job.num_prompts=6", "job.num_steps=1", "generation.max_new_tokens=16")


def _make(folder: Path, *, name: str) -> None:
    """In a process of its own: torch's threads, once started here, would hang the worlds that other tests fork."""
    code = (
        "import pathlib; from megatron_setup.random_model import make_random_hf_model as make; "
        f"make(pathlib.Path({str(folder)!r}), hf_config={HF_CONFIGS[name]!r}, dtype='bfloat16', seed=0)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "qwen3_moe"])
def test_zero_from_a_folder(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    _make(folder, name=name)
    outputs = tmp_path / "outputs"
    done = launch("+preset=zero_kl_cpu", f"model={folder}", *SHORT, f"output_dir={outputs}")
    assert done.code == ExitCode.OK, done.text
    report = read_json(only_attempt(outputs).report)
    assert report["verdict"] == "ZERO"
    assert report["total"]["n"] == report["total"]["n_exact"] == 6 * 16 * 2

"""Zero KL required under parallel layouts, through the whole experiment, on gloo ranks of the CPU platform."""

from pathlib import Path

import pytest

from launcher.errors import ExitCode
from launcher.files import read_json
from tests.launcher.runs import launch, only_attempt

SHORT = ("job.num_prompts=6", "job.num_steps=2", "generation.max_new_tokens=16")
LATE = ("parallelism=dp2", "optimizer.overlap_param_gather=true", "optimizer.ddp.overlap_grad_reduce=true")
STAGED = ("parallelism=tp2_sp", "parallelism.pipeline_model_parallel_size=2")


@pytest.mark.slow
@pytest.mark.parametrize("words", [LATE, STAGED], ids=["dp2, gathered late", "tp2 x pp2, sequence parallel"])
def test_zero_under_a_layout(words: tuple[str, ...], tmp_path: Path) -> None:
    done = launch("+preset=zero_kl_cpu", *words, *SHORT, f"output_dir={tmp_path}")
    assert done.code == ExitCode.OK, done.text
    report = read_json(only_attempt(tmp_path).report)
    assert report["verdict"] == "ZERO"
    assert report["total"]["n"] == report["total"]["n_exact"] == 6 * 16 * 3

"""A run that is killed and started again with the same words goes on at the last save, bit for bit."""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.errors import ExitCode
from launcher.paths import Outputs
from launcher.records import read_ranks
from launcher.steps import StepRecord, read_steps
from tests.launcher.runs import launch, processes_in, start

pytestmark = pytest.mark.slow

WORDS = ("job=train", "job.num_steps=12", "job.num_prompts=8", "checkpoint=save", "checkpoint.save_interval=1")


def _steps(path: Path) -> list[StepRecord]:
    return [replace(record, seconds=0.0) for record in read_steps(path)]


def test_a_killed_run_goes_on_at_its_last_save(tmp_path: Path) -> None:
    words = (*WORDS, f"output_dir={tmp_path}/outputs")
    process = start(*words)
    deadline = time.monotonic() + 240
    while not (found := list(tmp_path.glob("outputs/*/attempt_1/checkpoints/iter_0000003/complete.json"))):
        assert time.monotonic() < deadline, "the run never saved"
        time.sleep(0.02)
    (rank,) = read_ranks(Outputs(tmp_path / "outputs").runs()[0].attempts()[0])
    os.kill(rank.pid, signal.SIGKILL)
    text, _ = process.communicate(timeout=60)
    assert process.returncode == ExitCode.EXPERIMENT, text
    assert processes_in(found[0].parents[3]) == []

    done = launch(*words)
    assert done.code == ExitCode.OK, done.text
    first, second = Outputs(tmp_path / "outputs").runs()[0].attempts()
    killed, resumed = _steps(first.steps), _steps(second.steps)
    assert 3 <= resumed[0].step - 1 <= len(killed) < 12
    assert [record.step for record in resumed] == list(range(resumed[0].step, 13))

    unbroken = launch(*words, "force=true")
    assert unbroken.code == ExitCode.OK, unbroken.text
    whole = _steps(Outputs(tmp_path / "outputs").runs()[0].attempts()[2].steps)
    assert killed == whole[: len(killed)]
    assert resumed == whole[resumed[0].step - 1 :]

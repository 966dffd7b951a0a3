"""What goes wrong on real processes, disks and checkpoints: one clear error, its exit code, nothing left behind."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.errors import ExitCode
from launcher.files import read_json
from launcher.steps import read_steps
from tests.launcher.runs import QUICK, is_running, launch, only_attempt, processes_in, start, wait_for_stage

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Hugging Face folder, as the launcher makes it."""
    outputs = tmp_path_factory.mktemp("checkpoint")
    done = launch("job=convert", f"output_dir={outputs}")
    assert done.code == ExitCode.OK, done.text
    (config,) = outputs.glob("cache/hf/*/config.json")
    return config.parent


@pytest.fixture
def broken(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of the checkpoint to break."""
    return Path(shutil.copytree(checkpoint, tmp_path / "broken"))


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a disk")


def test_a_killed_rank_ends_the_run(tmp_path: Path) -> None:
    process = start("parallelism=dp2", "job.num_steps=200", f"output_dir={tmp_path}")
    ranks = wait_for_stage(tmp_path, stage="step 0: generate")
    os.kill(ranks[1].pid, signal.SIGKILL)
    text, _ = process.communicate(timeout=60)
    assert process.returncode == ExitCode.EXPERIMENT
    assert "rank 1 failed first" in text
    assert "was killed" in text
    assert str(only_attempt(tmp_path).logs) in text
    assert read_json(only_attempt(tmp_path).outcome)["state"] == "failed"
    assert not [r.pid for r in ranks if is_running(r.pid)]
    assert not processes_in(tmp_path)


def test_ctrl_c_ends_the_run(tmp_path: Path) -> None:
    process = start("job.num_steps=200", f"output_dir={tmp_path}")
    (rank,) = wait_for_stage(tmp_path, stage="step 0: generate")
    process.send_signal(signal.SIGINT)
    text, _ = process.communicate(timeout=60)
    assert process.returncode == ExitCode.EXPERIMENT
    assert "interrupted" in text
    assert not is_running(rank.pid)
    assert not processes_in(tmp_path)


def test_sigterm_has_the_ranks_save_and_end(tmp_path: Path) -> None:
    process = start("job=train", "job.num_steps=2000", "checkpoint=save", f"output_dir={tmp_path}")
    (rank,) = wait_for_stage(tmp_path, stage='"done": 1, "total": 2000')
    process.send_signal(signal.SIGTERM)
    text, _ = process.communicate(timeout=60)
    attempt = only_attempt(tmp_path)
    step = read_steps(attempt.steps)[-1].step
    assert process.returncode == ExitCode.INTERRUPTED, text
    assert f"interrupted by SIGTERM after step {step}, saved" in text
    assert (attempt.saves / f"iter_{step:07d}" / "complete.json").exists()
    outcome = read_json(attempt.outcome)
    assert (outcome["state"], outcome["exit_code"]) == ("cancelled", ExitCode.INTERRUPTED)
    assert not is_running(rank.pid)
    assert not processes_in(tmp_path)


def test_a_closed_terminal_ends_ranks_that_have_nothing_to_save(tmp_path: Path) -> None:
    process = start(f"output_dir={tmp_path}")
    (rank,) = wait_for_stage(tmp_path, stage="load libraries")
    process.send_signal(signal.SIGHUP)
    text, _ = process.communicate(timeout=60)
    assert process.returncode == ExitCode.EXPERIMENT, text
    assert read_json(only_attempt(tmp_path).outcome)["state"] == "cancelled"
    assert not is_running(rank.pid)
    assert not processes_in(tmp_path)


def test_ranks_of_a_killed_launcher_are_no_secret(tmp_path: Path) -> None:
    process = start(f"output_dir={tmp_path}")
    (rank,) = wait_for_stage(tmp_path, stage="load libraries")
    process.kill()
    process.wait()  # its output stays open: submitit's controller has it too
    assert is_running(rank.pid)
    assert "its ranks go on" in launch("status", f"output_dir={tmp_path}").text
    assert launch(f"output_dir={tmp_path}").code == ExitCode.SUBMISSION
    assert "cancelled" in launch("cancel", "latest", f"output_dir={tmp_path}").text
    process.communicate(timeout=60)
    assert not is_running(rank.pid)
    assert not processes_in(tmp_path)


@needs_root
def test_a_full_disk_is_named(tiny_disk: Path) -> None:
    done = launch(*QUICK, f"output_dir={tiny_disk}")
    assert done.code in (ExitCode.EXPERIMENT, ExitCode.SUBMISSION), done.text
    assert "No space left" in done.text or "is full" in done.text, done.text
    assert "hint: output_dir=" in done.text
    assert not list(tiny_disk.glob("cache/megatron/*/complete.json"))
    assert not processes_in(tiny_disk)


@needs_root
def test_a_read_only_disk_is_refused_before_anything_starts(tiny_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", tiny_disk], check=True)
    done = launch(*QUICK, f"output_dir={tiny_disk}")
    assert done.code == ExitCode.SUBMISSION
    assert "Read-only file system" in done.text
    assert "hint: output_dir=" in done.text


def test_a_truncated_checkpoint_is_refused_and_not_trusted_later(broken: Path, tmp_path: Path) -> None:
    weights = broken / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    outputs = tmp_path / "outputs"
    done = launch(*QUICK, f"model={broken}", f"output_dir={outputs}")
    assert done.code == ExitCode.CONFIG, done.text
    assert str(broken) in done.text
    assert not list(outputs.glob("cache/megatron/*/complete.json"))
    weights.write_bytes(whole)
    assert launch(*QUICK, f"model={broken}", f"output_dir={outputs}").code == ExitCode.OK


def test_a_tokenizer_of_another_model_is_refused(broken: Path, tmp_path: Path) -> None:
    path = broken / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["model"]["vocab"].update({f"other{i}": i for i in range(len(tokenizer["model"]["vocab"]), 600)})
    path.write_text(json.dumps(tokenizer))
    done = launch(*QUICK, f"model={broken}", f"output_dir={tmp_path}/outputs")
    assert done.code == ExitCode.CONFIG, done.text
    assert "600 ids, the model's vocabulary has 512" in done.text


def test_an_unknown_architecture_is_refused(broken: Path, tmp_path: Path) -> None:
    path = broken / "config.json"
    config = json.loads(path.read_text()) | {"architectures": ["SlideRuleForCausalLM"], "model_type": "slide_rule"}
    path.write_text(json.dumps(config))
    done = launch(*QUICK, f"model={broken}", f"output_dir={tmp_path}/outputs")
    assert done.code == ExitCode.CONFIG, done.text
    assert "slide_rule" in done.text or "SlideRule" in done.text


def test_malformed_prompts_name_the_line(checkpoint: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"text": "the quick brown fox"}\n{"text": 7}\n')
    done = launch(*QUICK, f"model={checkpoint}", f"job.prompts={prompts}", f"output_dir={tmp_path}/outputs")
    assert done.code == ExitCode.CONFIG, done.text
    assert f"{prompts}:2" in done.text

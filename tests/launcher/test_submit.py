"""Which attempt answers a question already, and what an attempt's folder holds before its ranks start."""

import subprocess
import sys
from pathlib import Path

import pytest

from launcher.compose import compose
from launcher.errors import SubmissionError
from launcher.files import read_json, write_json
from launcher.outcome import write_outcome
from launcher.paths import RunPaths
from launcher.plan import make_plan
from launcher.provenance import git_state, installed_versions
from launcher.resolved import load_resolved
from launcher.schema.cluster import ClusterKind
from launcher.submission import write_submission
from launcher.submit import finished_attempt, frozen, running_attempt, write_attempt
from launcher.validate import validate


def _ended(run: RunPaths, *, state: str, versions: dict[str, str] | None = None, tree: str = "clean") -> None:
    attempt = run.new_attempt()
    write_json(attempt.versions, data=versions or installed_versions())
    write_json(attempt.git, data=git_state() | {"tree": tree})
    write_outcome(attempt, state=state, exit_code=0)


@pytest.fixture
def committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A working tree without changes, which the developer's is not."""
    state = git_state() | {"tree": "clean"}
    monkeypatch.setattr("launcher.submit.git_state", lambda: state)


@pytest.mark.usefixtures("committed")
def test_the_newest_finished_attempt_answers(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    assert finished_attempt(run) is None
    for state in ("finished", "finished", "failed"):
        _ended(run, state=state)
    run.new_attempt()  # without an outcome: running, or killed with its launcher
    found = finished_attempt(run)
    assert found is not None
    assert found.number == 2


@pytest.mark.usefixtures("committed")
def test_an_answer_of_other_code_is_not_offered(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    _ended(run, state="finished", versions=installed_versions() | {"megatron-core": "0.18.0"})
    _ended(run, state="finished", tree="changed")
    assert finished_attempt(run) is None


def test_an_attempt_runs_while_its_launcher_lives(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    attempt = run.new_attempt()
    assert running_attempt(run) is None
    write_submission(attempt, cluster=ClusterKind.local, job="1")
    assert running_attempt(run) == attempt
    write_outcome(attempt, state="failed", exit_code=5)
    assert running_attempt(run) is None


def test_an_attempt_of_a_dead_launcher_does_not_run(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    run = RunPaths(tmp_path)
    attempt = run.new_attempt()
    write_submission(attempt, cluster=ClusterKind.local, job="1")
    write_json(attempt.submission, data=read_json(attempt.submission) | {"pid": dead.pid})
    assert running_attempt(run) is None


def test_the_folder_describes_the_run(tmp_path: Path) -> None:
    composed = compose(["job.seed=7", f"output_dir={tmp_path}"])
    plan = make_plan(composed.config, validation=validate(composed.config))
    paths = write_attempt(composed, plan=plan)
    assert load_resolved(paths.resolved) == composed.config
    assert paths.overrides.read_text().splitlines() == ["job.seed=7", f"output_dir={tmp_path}"]
    assert read_json(paths.plan)["layout"]["world_size"] == 1
    assert read_json(paths.versions)["megatron-core"] == "0.19.2"
    assert set(read_json(paths.git)) >= {"commit"}


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    composed = compose([f"output_dir={tmp_path}/file"])
    plan = make_plan(composed.config, validation=validate(composed.config))
    with pytest.raises(SubmissionError, match="hint: output_dir="):
        write_attempt(composed, plan=plan)


def test_frozen_paths_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.jsonl").touch()
    config = frozen(compose(["job.prompts=prompts.jsonl", "model=hf", "model.hf_path=organisation/name"]).config)
    assert config.output_dir == str(tmp_path / "outputs")
    assert config.job.prompts == str(tmp_path / "prompts.jsonl")
    assert config.model.hf_path == "organisation/name"

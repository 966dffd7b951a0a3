"""How points ended: their table, and the worst exit code."""

from pathlib import Path

import pytest

from launcher.errors import ExitCode
from launcher.outcome import write_outcome
from launcher.paths import AttemptPaths, RunPaths
from launcher.steps import StepRecord, append_step
from launcher.sweep.results import read_result, render_results, worst
from tests.launcher.runs import QUICK, launch


def ended(folder: Path, *, state: str, code: int) -> AttemptPaths:
    attempt = RunPaths(folder).new_attempt()
    write_outcome(attempt, state=state, exit_code=code)
    return attempt


def test_the_worst_counts_and_the_failed_are_named(tmp_path: Path) -> None:
    trained = ended(tmp_path / "a", state="finished", code=0)
    figures = {"terms": {}, "value_loss": None, "grad_norm": 1.0, "lr": 0.1, "num_tokens": 8, "seconds": 1.0}
    for step in (1, 2):
        append_step(trained.steps, record=StepRecord(step=step, loss=2.5 / step, **figures))  # pyright: ignore
    attempts = (trained, ended(tmp_path / "b", state="failed", code=3), RunPaths(tmp_path / "c").new_attempt())
    results = [read_result(a, number=n, name=f"job.seed={n}") for n, a in enumerate(attempts, start=1)]
    assert [r.state for r in results] == ["finished", "failed", "open"]
    assert worst(results[:1]) == ExitCode.OK
    assert worst(results[:2]) == ExitCode.ENVIRONMENT
    assert worst(results) == ExitCode.EXPERIMENT
    lines = render_results(results).splitlines()
    assert lines[1].split() == ["1", "finished", "loss", "1.25", "job.seed=1"]
    assert lines[-2:] == [f"2: exit code 3, {attempts[1].root}", f"3: exit code 5, {attempts[2].root}"]


@pytest.mark.slow
def test_points_run_here_in_turn(tmp_path: Path) -> None:
    """The zero-KL recipe reaches zero; a dense model cannot spread experts; each seed is asked twice."""
    words = ("+preset=zero_kl_cpu", *QUICK, "parallelism=single,ep2", "job.seed=1,1")
    done = launch("-m", *words, f"output_dir={tmp_path}")
    assert done.code == ExitCode.OK, done.text
    assert "4 expected = 1 run + 2 pruned + 1 duplicate + 0 finished + 0 running" in done.text
    rows = [line.split() for line in done.text.splitlines() if " finished  ZERO " in line]
    assert [(row[0], row[3]) for row in rows] == [("1", "32/32")]

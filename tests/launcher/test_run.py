"""What the verb report says of runs without a verdict, and a running run's answer to the same words."""

from pathlib import Path

import pytest

from launcher.__main__ import main
from launcher.compose import compose
from launcher.errors import ExitCode
from launcher.outcome import write_outcome
from launcher.paths import AttemptPaths, Outputs
from launcher.plan import make_plan
from launcher.records import ProgressWriter
from launcher.schema.cluster import ClusterKind
from launcher.steps import StepRecord, append_step
from launcher.submission import write_submission
from launcher.submit import write_attempt
from launcher.validate import validate


def trained(outputs: Path, *, steps: int) -> AttemptPaths:
    paths = Outputs(outputs).run("train", digest="0123abcd").new_attempt()
    paths.resolved.touch()
    write_submission(paths, cluster=ClusterKind.local, job="4")
    ProgressWriter(paths.progress)("train", done=steps, total=300, unit="steps")
    record = StepRecord(
        step=1, loss=1.0, terms={"nll": 1.0}, value_loss=None, grad_norm=1.0, lr=1e-3, num_tokens=64, seconds=0.5
    )
    append_step(paths.steps, record=record)
    return paths


@pytest.mark.parametrize(
    ("state", "code", "error", "said"),
    [
        ("cancelled", ExitCode.EXPERIMENT, "", "cancelled at step 151 of 300: "),
        ("cancelled", ExitCode.INTERRUPTED, "interrupted by SIGTERM", "cancelled at step 151 of 300: "),
        ("failed", ExitCode.EXPERIMENT, "rank 0 failed first\nmore", "failed at step 151 of 300: "),
        ("finished", ExitCode.OK, "", "finished: "),
    ],
)
def test_how_a_run_without_a_verdict_ended(
    state: str, code: ExitCode, error: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = trained(tmp_path, steps=151)
    write_outcome(paths, state=state, exit_code=code, error=error)
    assert main(["report", "latest", f"output_dir={tmp_path}"]) == code
    text = capsys.readouterr().out
    assert f"{said}{paths.root}" in text
    assert "more" not in text
    assert error.splitlines()[:1] == [line for line in error.splitlines() if line in text]


def test_a_run_that_is_on_is_said_to_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = trained(tmp_path, steps=2)
    assert main(["report", "latest", f"output_dir={tmp_path}"]) == ExitCode.OK
    assert f"running at step 2 of 300: {paths.root}" in capsys.readouterr().out


def test_the_same_words_find_the_running_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["job.seed=7", f"output_dir={tmp_path}"]
    composed = compose(words)
    paths = write_attempt(composed, plan=make_plan(composed.config, validation=validate(composed.config)))
    write_submission(paths, cluster=ClusterKind.local, job="4")
    assert main(words) == ExitCode.SUBMISSION
    lines = capsys.readouterr().err.splitlines()
    assert lines[1] == f"hint: python -m launcher (status | logs -f | cancel) {paths.root}"
    assert lines[2].startswith("hint: force=true")

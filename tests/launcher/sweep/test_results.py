"""How points ended: their record, their table within 80 columns, the worst exit code."""

from pathlib import Path

import pytest
from rich.console import Console

from launcher.__main__ import main
from launcher.errors import ExitCode
from launcher.outcome import write_outcome
from launcher.paths import AttemptPaths, Outputs, RunPaths, SweepPaths
from launcher.records import ProgressWriter
from launcher.steps import StepRecord, append_step
from launcher.sweep.record import PointRecord, SweepRecord, attempt_of, read_sweep, write_sweep
from launcher.sweep.results import LOSS, Result, read_results, render_notes, render_results, worst
from tests.launcher.runs import QUICK, launch

REASON = "error[PL012]: parallelism.expert_model_parallel_size is 2, a dense model needs 1\n  why:    it has no experts"


def ended(outputs: Outputs, *, digest: str, state: str, code: int, loss: float | None = None) -> AttemptPaths:
    attempt = outputs.run("train-tiny", digest=digest).new_attempt()
    attempt.resolved.touch()
    ProgressWriter(attempt.progress)("train", done=0, total=2)
    figures = {"terms": {}, "value_loss": None, "grad_norm": 1.0, "lr": 0.1, "num_tokens": 8, "seconds": 0.5}
    for step in (1, 2) if loss is not None else ():
        append_step(attempt.steps, record=StepRecord(step=step, loss=loss / step, **figures))  # pyright: ignore
    write_outcome(attempt, state=state, exit_code=code, error="" if state == "finished" else "error: first\nsecond")
    return attempt


def a_sweep(folder: Path) -> SweepPaths:
    """Two points that trained, one that failed, one that is open, one duplicate, two pruned for one reason."""
    outputs = Outputs(folder)
    sweep = outputs.sweep("0123abcd")
    sweep.root.mkdir(parents=True)
    attempts = [
        ended(outputs, digest="1", state="finished", code=0, loss=2.5),
        ended(outputs, digest="2", state="finished", code=0, loss=2.0),
        ended(outputs, digest="3", state="failed", code=3),
        outputs.run("train-tiny", digest="4").new_attempt(),
    ]
    states = ("submitted", "submitted", "submitted", "submitted", "duplicate", "pruned", "pruned")
    points = tuple(
        PointRecord(
            number=number,
            words=(f"optimizer.lr={'1e-4' if number % 2 else '3e-4'}", f"parallelism=tp{number}"),
            state=state,
            attempt=str(attempts[number - 1].root.relative_to(folder)) if state == "submitted" else None,
            num_ranks=number if state == "submitted" else 0,
            num_gpus=8 if state == "submitted" else 0,
            twin=1 if state == "duplicate" else None,
            reasons=(REASON,) if state == "pruned" else (),
        )
        for number, state in enumerate(states, start=1)
    )
    write_sweep(sweep, record=SweepRecord(fixed=("job=train",), num_excluded=2, points=points))
    return sweep


def lines_of(results: list[Result]) -> list[str]:
    console = Console(width=80)
    with console.capture() as captured:
        console.print(render_results(results))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_a_record_reads_back(tmp_path: Path) -> None:
    record = read_sweep(a_sweep(tmp_path))
    write_sweep(Outputs(tmp_path).sweep("0123abcd"), record=record)
    assert read_sweep(Outputs(tmp_path).sweep("0123abcd")) == record


def test_the_worst_counts_and_the_failed_are_named(tmp_path: Path) -> None:
    results = read_results(a_sweep(tmp_path))
    assert [r.state for r in results] == [
        *("finished", "finished", "failed", "not started"),
        *("duplicate", "pruned", "pruned"),
    ]
    assert worst(results[:2]) == ExitCode.OK
    assert worst(results) == ExitCode.ENVIRONMENT
    lines = lines_of(results)
    assert lines[0].split() == ["#", "state", "loss", "grad", "norm", "tok/s", "s", "GPUs", "point"]
    assert lines[2].split()[:8] == ["1", "finished", "1.250000", "1", "16", "0", "8", "optimizer.lr=1e-4"]
    assert render_notes(results).splitlines() == [
        "3: exit code 3; error: first",
        f"    {tmp_path}/train-tiny-3/attempt_1",
        "5: asks what 1 asks",
        "6, 7: error[PL012]: parallelism.expert_model_parallel_size is 2, a dense model needs 1",
    ]


def test_the_verbs_take_a_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By its folder and by its hash; outputs that were moved are found where they are now."""
    a_sweep(tmp_path / "old")
    moved = (tmp_path / "old").rename(tmp_path / "new")
    folder = moved / "sweeps" / "0123abcd"
    assert main(["report", "0123abcd", f"output_dir={moved}"]) == ExitCode.ENVIRONMENT
    assert f"page: {folder}/report.html" in capsys.readouterr().out
    assert (folder / "report.html").exists()
    assert main(["status", str(folder)]) == ExitCode.OK
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows[1:5]] == [f"train-tiny-{n}/1" for n in (1, 2, 3, 4)]
    assert main(["cancel", str(folder)]) == ExitCode.OK
    assert main(["report", str(folder), "latest", f"output_dir={moved}"]) == ExitCode.CONFIG


def test_a_cancelled_training_point_has_its_last_loss(tmp_path: Path) -> None:
    """What a full disk left of its last line is no step."""
    outputs = Outputs(tmp_path)
    attempt = ended(outputs, digest="1", state="cancelled", code=5, loss=3.0)
    with attempt.steps.open("a") as file:
        file.write('{"step": 3, "lo')
    sweep = outputs.sweep("0123abcd")
    sweep.root.mkdir(parents=True)
    point = PointRecord(number=1, words=(), state="submitted", attempt=str(attempt.root.relative_to(tmp_path)))
    write_sweep(sweep, record=SweepRecord(fixed=(), num_excluded=0, points=(point,)))
    write_outcome(attempt, state="cancelled", exit_code=5)
    (result,) = read_results(sweep)
    assert (result.state, result.figures[LOSS], result.note) == ("cancelled", 1.5, "its last step was 2")


def test_the_newest_attempt_is_the_points_unless_the_recorded_one_has_finished(tmp_path: Path) -> None:
    sweep = a_sweep(tmp_path)
    points = read_sweep(sweep).points
    for point in points[:3:2]:
        found = attempt_of(point, sweep=sweep)
        assert found is not None
        RunPaths(found.root.parent).new_attempt()
    numbers = [attempt.number for point in points if (attempt := attempt_of(point, sweep=sweep)) is not None]
    assert numbers == [1, 1, 2, 1]


@pytest.mark.slow
def test_points_run_here_in_turn(tmp_path: Path) -> None:
    """The zero-KL recipe reaches zero; a dense model cannot spread experts; each seed is asked twice."""
    words = ("+preset=zero_kl_cpu", *QUICK, "parallelism=single,ep2", "job.seed=1,1")
    done = launch("-m", *words, f"output_dir={tmp_path}")
    assert done.code == ExitCode.OK, done.text
    assert "4 expected = 1 run + 2 pruned + 1 duplicate + 0 finished + 0 running" in done.text
    (sweep,) = (tmp_path / "sweeps").iterdir()
    results = read_results(SweepPaths(sweep))
    assert [(r.state, r.verdict, r.exact) for r in results] == [
        ("finished", "ZERO", "32/32"),
        ("duplicate", "", ""),
        ("pruned", "", ""),
        ("pruned", "", ""),
    ]
    assert "ZERO" in (sweep / "report.html").read_text()

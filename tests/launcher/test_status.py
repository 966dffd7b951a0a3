"""Rows of runs on the disk, their table and their JSON; no Slurm is asked about runs that ended."""

import json
import os
import time
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from launcher.__main__ import main
from launcher.errors import ConfigError, ExitCode
from launcher.files import write_json
from launcher.outcome import write_outcome
from launcher.paths import AttemptPaths, Outputs
from launcher.records import Progress, ProgressWriter, RankState, read_rank, write_rank
from launcher.schema.cluster import ClusterKind
from launcher.selection import newest_attempts, select_one
from launcher.status import Row, last_event, render_rows, rows_of, to_json
from launcher.submission import write_submission

LONG = "mismatch-a_model_with_quite_a_long_name-0123abcd"


def attempt(outputs: Path, *, name: str, kind: ClusterKind = ClusterKind.local, job: str = "1") -> AttemptPaths:
    paths = Outputs(outputs).run(name, digest="0123abcd").new_attempt()
    paths.resolved.touch()
    write_submission(paths, cluster=kind, job=job)
    return paths


def test_a_running_run_and_its_heartbeat(tmp_path: Path) -> None:
    paths = attempt(tmp_path, name="run")
    assert last_event(paths) is None
    progress = ProgressWriter(paths.progress)
    for done in range(200):  # more than one look at the end of the file
        progress("step 1: train", done=done, total=200)
    with paths.progress.open("a") as file:
        file.write('{"half a line')
    (row,) = rows_of([paths])
    assert (row.state, row.step) == ("running", "step 1: train 199/200")
    assert row.heartbeat_s is not None
    assert row.heartbeat_s < 60
    assert json.loads(to_json([row])) == [asdict(row)]


def test_a_rank_without_progress_has_the_age_of_its_start(tmp_path: Path) -> None:
    """It may hang in an import; and the last event of a requeued run is older than its new start."""
    paths = attempt(tmp_path, name="run")
    (row,) = rows_of([paths])
    assert row.heartbeat_s is None
    write_rank(paths, rank=0, state=RankState.RUNNING)
    record = read_rank(paths, rank=0)
    assert record is not None
    write_json(paths.rank(0), data=asdict(replace(record, time=record.time - 700)))
    assert [row.is_silent for row in rows_of([paths])] == [True]
    event = Progress(stage="train", done=1, total=2, unit="", time=record.time - 1000)
    paths.progress.write_text(json.dumps(asdict(event)) + "\n")
    (row,) = rows_of([paths])
    assert row.heartbeat_s is not None
    assert 700 <= row.heartbeat_s < 900


@pytest.mark.parametrize("state", ["finished", "failed", "cancelled", "refused"])
def test_an_ended_run(state: str, tmp_path: Path) -> None:
    paths = attempt(tmp_path, name="run", kind=ClusterKind.slurm, job="17")
    write_outcome(paths, state=state, exit_code=5, error="error: first line\nsecond line")
    (row,) = rows_of([paths])
    assert (row.job, row.state, row.exit_code, row.detail) == ("17", state, 5, "error: first line")
    assert row.heartbeat_s is None


def test_a_record_of_before_slurm(tmp_path: Path) -> None:
    paths = attempt(tmp_path, name="run")
    data = {"host": "elsewhere", "pid": 1, "job": "4"}
    paths.submission.write_text(json.dumps(data))
    assert [row.state for row in rows_of([paths])] == ["gone"]


def test_a_run_whose_launcher_was_killed(tmp_path: Path) -> None:
    unsubmitted = Outputs(tmp_path).run("unsubmitted", digest="0").new_attempt()
    dead = attempt(tmp_path, name="dead")
    data = json.loads(dead.submission.read_text()) | {"pid": 2**22 + 1}
    dead.submission.write_text(json.dumps(data))
    assert [row.state for row in rows_of([unsubmitted, dead])] == ["not started", "gone"]


def test_the_table_is_80_columns_wide_and_says_who_is_silent() -> None:
    row = Row(
        run=LONG,
        attempt=12,
        job="123456789_17",
        state="RUNNING",
        detail="node1",
        exit_code=None,
        step="step 12: generate 1024/2048",
        heartbeat_s=723.0,
        folder="outputs/x",
    )
    text = render_rows([row, replace(row, state="failed", exit_code=5, heartbeat_s=None, detail="error: x")])
    lines = text.splitlines()
    assert all(len(line) <= 80 for line in lines[:3])
    assert lines[1].endswith(" 12m")
    assert "failed (5)" in lines[2]
    assert lines[4] == f"{LONG}/12: RUNNING but no step for 12m"
    assert lines[5] == f"{LONG}/12: error: x"


def test_names_that_a_person_may_type(tmp_path: Path) -> None:
    outputs = Outputs(tmp_path)
    old = attempt(tmp_path, name="old", kind=ClusterKind.slurm, job="17")
    new = attempt(tmp_path, name="new", kind=ClusterKind.slurm, job="18_3")
    os.utime(old.root.parent, (1, 1))
    for name in ("17", "old-0123abcd", str(old.root), str(old.root.parent)):
        assert select_one(name, outputs=outputs, wanted=lambda _: True, what="x") == old
    for name in ("latest", "18_3"):
        assert select_one(name, outputs=outputs, wanted=lambda _: True, what="x") == new
    assert newest_attempts(outputs) == [old, new]
    with pytest.raises(ConfigError, match=r"no run is called 19 in \S+, of 2 run\(s\)\n  near:   17, "):
        select_one("19", outputs=outputs, wanted=lambda _: True, what="x")


@pytest.mark.parametrize(
    ("state", "error", "said"),
    [
        ("", "", r"attempt_1 does not have a report yet\nhint: python -m launcher status "),
        ("cancelled", "", "attempt_1 was cancelled before it had a report"),
        ("failed", "error: x\ny", r"attempt_1 failed before it had a report\n  why:    error: x$"),
        ("finished", "", "attempt_1 has finished without a report"),
    ],
)
def test_a_run_that_lacks_something_is_said_to_be_there(state: str, error: str, said: str, tmp_path: Path) -> None:
    paths = attempt(tmp_path, name="run", kind=ClusterKind.slurm, job="13")
    if state:
        write_outcome(paths, state=state, exit_code=5, error=error)
    for name in ("13", "latest", "run-0123abcd"):
        with pytest.raises(ConfigError, match=said):
            select_one(name, outputs=Outputs(tmp_path), wanted=lambda _: False, what="a report")


def test_of_many_runs_the_three_nearest_are_named(tmp_path: Path) -> None:
    for name in ("train", "mismatch", "setup", "other", "import"):
        attempt(tmp_path, name=name)
    with pytest.raises(ConfigError, match=r"of 5 run\(s\)\n  near:   train-0123abcd, \S+, \S+$"):
        select_one("trian-0123abcd", outputs=Outputs(tmp_path), wanted=lambda _: True, what="x")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("status", "--jsn"), "error: --jsn is no flag of this verb\nhint: --json\n"),
        (("status", "-m"), "error: -m is no flag of this verb\n"),
        (("cancel", "--all"), "error: --all is no flag of this verb\n"),
        (("report", "--json"), "error: --json is no flag of this verb\n"),
    ],
)
def test_flags_are_not_taken_for_runs(words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == ExitCode.CONFIG
    assert capsys.readouterr().err.startswith(said)


def test_logs_of_a_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = attempt(tmp_path, name="run", job="4")
    write_json(paths.plan, data={"layout": {"world_size": 2}})
    paths.logs.mkdir()
    paths.log("4", rank=1).write_text("what rank 1 printed\n")
    write_outcome(paths, state="finished", exit_code=0)
    assert main(["logs", "-f", "latest", "rank=1", f"output_dir={tmp_path}"]) == ExitCode.OK
    assert capsys.readouterr().out == "what rank 1 printed\n"
    assert main(["logs", "latest", "rank=x", f"output_dir={tmp_path}"]) == ExitCode.CONFIG


@pytest.mark.parametrize(("num_ranks", "there"), [(1, "there is rank 0 only"), (4, "there are ranks 0 to 3")])
def test_logs_of_a_rank_that_the_run_has_not(
    num_ranks: int, there: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = attempt(tmp_path, name="run")
    write_json(paths.plan, data={"layout": {"world_size": num_ranks}})
    assert main(["logs", "latest", "rank=7", f"output_dir={tmp_path}"]) == ExitCode.CONFIG
    assert f"error: rank=7, {there}\n" in capsys.readouterr().err


def test_what_is_over_is_not_cancelled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = attempt(tmp_path, name="run", kind=ClusterKind.slurm, job="17")
    write_outcome(paths, state="finished", exit_code=0)
    assert main(["cancel", "17", f"output_dir={tmp_path}"]) == ExitCode.OK
    assert "over already" in capsys.readouterr().out
    assert main(["cancel"]) == ExitCode.CONFIG


def test_a_thousand_runs_in_two_seconds_and_two_questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten arrays of a hundred: 500 elements are over, 25 of the others are in the queue; sacct is asked for the arrays
    of the rest. Tests run beside each other, so the seconds are a processor's and not a clock's."""
    asked = tmp_path / "asked"
    for name, line in (("squeue", 'for i in $(seq 0 49); do echo "103_$i|RUNNING|node1"; done'), ("sacct", "")):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/bash\necho "{name} ${{@: -1}}" >> {asked}\n{line}\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    outputs = Outputs(tmp_path / "outputs")
    for number in range(1000):
        job = f"{100 + number // 100}_{number % 100}"
        paths = attempt(outputs.root, name=f"run{number}", kind=ClusterKind.slurm, job=job)
        ProgressWriter(paths.progress)("train", done=1, total=2)
        if number % 2:
            write_outcome(paths, state="finished", exit_code=0)
    started = time.process_time()
    rows = rows_of(newest_attempts(outputs))
    assert time.process_time() - started < 2.0
    assert Counter(row.state for row in rows) == {"finished": 500, "RUNNING": 25, "UNKNOWN": 475}
    arrays = ",".join(str(100 + number) for number in range(10))
    assert asked.read_text().splitlines() == ["squeue --format=%i|%T|%R", f"sacct --jobs={arrays}"]

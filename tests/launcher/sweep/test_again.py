"""Sweeps that are cancelled and queued again, on a Slurm that only remembers what it was asked."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.errors import ExitCode
from launcher.outcome import write_outcome
from launcher.paths import AttemptPaths, Outputs, SweepPaths
from launcher.submission import read_submission
from launcher.sweep.arrays import only_submitter
from launcher.sweep.report import write_last_page
from tests.launcher.runs import ROOT
from tests.launcher.sweep.test_arrays import FakeSlurm

WORDS = ("-m", "cluster=slurm", "platform=hopper", "job.num_prompts=320", "cluster.max_gpus=2", "job.seed=1,2,3")
SCANCEL = """#!/bin/sh
for job in "$@"; do sed -i "/^${{job%_*}} /d" {folder}/queue; done
"""
REFUSED = "#!/bin/sh\necho 'sbatch: error: invalid partition specified: x' >&2\nexit 1\n"


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    fake = FakeSlurm(tmp_path / "bin")
    (fake.folder / "scancel").write_text(SCANCEL.format(folder=fake.folder))
    (fake.folder / "scancel").chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.folder}:{os.environ['PATH']}")
    monkeypatch.setattr("launcher.sweep.arrays._SETTLE_S", 0.0)
    monkeypatch.chdir(tmp_path)
    return fake


def only_sweep() -> SweepPaths:
    (sweep,) = Path("outputs/sweeps").iterdir()
    return SweepPaths(sweep)


def attempts(number: int) -> list[AttemptPaths]:
    """Those with this number, by their job."""
    found = [run.attempts()[number - 1] for run in Outputs(Path("outputs")).runs() if len(run.attempts()) >= number]
    return sorted(found, key=job_of)


def job_of(attempt: AttemptPaths) -> str:
    submission = read_submission(attempt)
    return "" if submission is None else submission.job


def states(slurm: FakeSlurm, *names: str) -> list[tuple[int, str]]:
    """The attempt and the state of each row of status."""
    return [(row["attempt"], row["state"]) for row in json.loads(slurm.launch("status", "--json", *names).text)]


def test_a_cancelled_sweep_is_queued_again_and_stays_one(slurm: FakeSlurm) -> None:
    """Its new jobs are an array under the same limit, and every verb looks at them."""
    assert slurm.launch(*WORDS).code == ExitCode.OK
    name = only_sweep().root.name
    assert slurm.launch("cancel", name).text.count("cancelled: ") == 3
    assert states(slurm, name) == [(1, "cancelled")] * 3
    done = slurm.launch("requeue", name)
    assert (done.code, done.text) == (ExitCode.OK, f"submitted job 102: 3 run(s) of sweep {name}\n")
    script = (slurm.folder / "script.2").read_text()
    assert "--array=0-2%2\n" in script
    assert "-m launcher.sweep.finish " in script
    assert [job_of(a) for a in attempts(2)] == ["102_0", "102_1", "102_2"]
    assert states(slurm, name) == [(2, "PENDING")] * 3
    assert slurm.launch("report", name).code == ExitCode.OK
    page = only_sweep().page.read_text()
    assert ("3 PENDING" in page, page.count("attempt_2"), page.count("attempt_1")) == (True, 3, 0)
    assert slurm.launch("cancel", name).text.count("cancelled: ") == 3
    assert slurm.queued == []


def test_what_is_on_or_has_finished_is_left_and_the_rest_is_queued(slurm: FakeSlurm) -> None:
    """Of three one has failed, one has finished, and one is on: the array of the first waits for it."""
    assert slurm.launch(*WORDS).code == ExitCode.OK
    name = only_sweep().root.name
    failed, finished, _ = attempts(1)
    write_outcome(failed, state="failed", exit_code=5, error="error: x")
    write_outcome(finished, state="finished", exit_code=0)
    done = slurm.launch("requeue", name)
    assert done.code == ExitCode.OK, done.text
    assert sorted(line.rpartition("attempt_1 ")[2] for line in done.text.splitlines() if line.startswith("left: ")) == [
        "has finished",
        "is queued or running",
    ]
    (again,) = attempts(2)
    assert again.root.parent == failed.root.parent
    assert "--dependency=afterany:101\n" in (slurm.folder / "script.2").read_text()
    done = slurm.launch("requeue", name)
    assert done.code == ExitCode.CONFIG
    assert "error: none of the 3 runs can be queued again" in done.text


def test_the_last_page_waits_for_the_newest_attempts(slurm: FakeSlurm) -> None:
    assert slurm.launch(*WORDS).code == ExitCode.OK
    slurm.launch("cancel", "101")
    write_last_page(only_sweep())
    assert "3 cancelled" in only_sweep().page.read_text()
    slurm.launch("requeue", "101")
    only_sweep().page.unlink()
    for attempt in attempts(2):
        write_last_page(only_sweep())
        assert not only_sweep().page.exists()
        write_outcome(attempt, state="finished", exit_code=0)
    write_last_page(only_sweep())
    assert "3 finished" in only_sweep().page.read_text()


def test_an_arrays_id_means_all_of_its_elements(slurm: FakeSlurm) -> None:
    assert slurm.launch(*WORDS).code == ExitCode.OK
    assert states(slurm, "101") == [(1, "PENDING")] * 3
    assert slurm.launch("cancel", "101").text.count("cancelled: ") == 3
    assert "submitted job 102: 3 run(s)" in slurm.launch("requeue", "101").text
    done = slurm.launch("logs", "102")
    assert (done.code, "hint: 102_0" in done.text) == (ExitCode.CONFIG, True)
    assert states(slurm, "102_1") == [(2, "PENDING")]


def test_a_run_that_is_named_twice_is_queued_once(slurm: FakeSlurm) -> None:
    assert slurm.launch(*WORDS).code == ExitCode.OK
    slurm.launch("cancel", "101")
    slurm.launch("requeue", "101")
    slurm.launch("cancel", "102")
    done = slurm.launch("requeue", "101_0", only_sweep().root.name, "102")
    assert done.text == f"submitted job 103: 3 run(s) of sweep {only_sweep().root.name}\n"
    assert len(attempts(3)) == 3


def test_a_killed_requeue_doubles_nothing(slurm: FakeSlurm) -> None:
    """Killed after Slurm has the array and before it is recorded: the next one finds it."""
    assert slurm.launch(*WORDS).code == ExitCode.OK
    slurm.launch("cancel", "101")
    (slurm.folder / "kill-after").touch()
    folder = f"output_dir={Path('outputs').absolute()}"
    command = [sys.executable, "-m", "launcher", "requeue", "101", folder]
    assert subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.DEVNULL).returncode == -9
    (slurm.folder / "kill-after").unlink()
    assert [job_of(a) for a in attempts(2)] == ["", "", ""]
    assert "none of the 3 runs can be queued again" in slurm.launch("requeue", "101").text
    assert [job_of(a) for a in attempts(2)] == ["102_0", "102_1", "102_2"]
    assert [line.split()[0] for line in slurm.queued] == ["102"]


def test_one_launcher_at_a_time_queues_again(slurm: FakeSlurm) -> None:
    assert slurm.launch(*WORDS).code == ExitCode.OK
    slurm.launch("cancel", "101")
    with only_submitter(only_sweep()):
        done = slurm.launch("requeue", "101")
    assert (done.code, len(slurm.queued)) == (ExitCode.SUBMISSION, 0)


def test_a_refusal_is_said_and_the_runs_are_free(slurm: FakeSlurm) -> None:
    assert slurm.launch(*WORDS).code == ExitCode.OK
    slurm.launch("cancel", "101")
    sbatch = (slurm.folder / "sbatch").read_text()
    (slurm.folder / "sbatch").write_text(REFUSED)
    name = only_sweep().root.name
    done = slurm.launch("requeue", name)
    assert (done.code, "hint: cluster.partition=NAME" in done.text) == (ExitCode.SUBMISSION, True)
    assert states(slurm, name) == [(2, "refused")] * 3
    (slurm.folder / "sbatch").write_text(sbatch)
    assert "submitted job 102: 3 run(s)" in slurm.launch("requeue", name).text


@pytest.mark.parametrize("verb", ["status", "cancel", "requeue", "report"])
def test_a_sweep_that_sbatch_refused_says_so(verb: str, slurm: FakeSlurm) -> None:
    (slurm.folder / "sbatch").write_text(REFUSED)
    assert slurm.launch(*WORDS).code == ExitCode.SUBMISSION
    done = slurm.launch(verb, only_sweep().root.name)
    assert done.code == ExitCode.SUBMISSION
    assert "sbatch: error: invalid partition specified: x" in done.text
    if verb != "report":
        assert done.text.endswith("hint: type the same words again\n")

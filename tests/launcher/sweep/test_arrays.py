"""Arrays without Slurm: programs named sbatch, squeue, sacct and scontrol that remember what they were asked.

A launcher that is killed at any point of a submission leaves a sweep that the same words complete.
"""

import os
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path

import pytest

from launcher.__main__ import main
from launcher.compose import compose
from launcher.errors import ExitCode, SubmissionError
from launcher.files import write_json
from launcher.outcome import read_outcome
from launcher.paths import AttemptPaths, Outputs, SweepPaths
from launcher.submission import read_submission
from launcher.sweep.arrays import adopt_orphans, array_parameters, only_submitter, read_array
from launcher.sweep.finish import finish_element
from launcher.sweep.record import read_sweep
from tests.launcher.runs import ROOT, Done

WORDS = ("-m", "cluster=slurm", "job.seed=1,2,3,4,5", "parallelism=single,ep2")
SBATCH = """#!/bin/sh
echo called >> {folder}/calls
cp "$1" {folder}/script.$(wc -l < {folder}/calls)
if [ -e {folder}/kill-before ]; then kill -9 $PPID; exit 1; fi
n=$((100 + $(wc -l < {folder}/calls)))
name=$(sed -n 's/^#SBATCH --job-name=//p' $1)
echo "$n $name $(sed -n 's/^#SBATCH --array=0-//p' $1 | cut -d% -f1)" >> {folder}/queue
[ ! -e {folder}/kill-after ] || kill -9 $PPID
echo "Submitted batch job $n"
"""
SQUEUE = """#!/bin/sh
name=$(echo "$*" | sed -n 's/.*--name=//p')
while read -r id its last; do
  if [ -n "$name" ]; then [ "$its" != "$name" ] || echo "$id"; continue; fi
  [ -n "$last" ] || echo "$id|PENDING|(Priority)"
  for i in $(seq 0 "${{last:--1}}"); do echo "${{id}}_$i|PENDING|(Priority)"; done
done < {folder}/queue
"""


class FakeSlurm:
    """Its folder has `calls` (one line a call of sbatch) and `queue`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "calls").touch()
        (folder / "queue").touch()
        programs = {"sbatch": SBATCH, "squeue": SQUEUE, "sacct": "#!/bin/sh\n", "srun": "#!/bin/sh\n"}
        programs["scontrol"] = '#!/bin/sh\necho "MaxArraySize            = 3"\n'
        for name, text in programs.items():
            (folder / name).write_text(text.format(folder=folder) if "{folder}" in text else text)
            (folder / name).chmod(0o755)

    def launch(self, *words: str) -> Done:
        """The launcher in this process: its words and exit code."""
        with StringIO() as said, redirect_stdout(said), redirect_stderr(said):
            code = main(words)
            return Done(code=code, text=said.getvalue())

    @property
    def queued(self) -> list[str]:
        """Arrays that sbatch took, as `id name last-index`."""
        return (self.folder / "queue").read_text().splitlines()


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    fake = FakeSlurm(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{fake.folder}:{os.environ['PATH']}")
    monkeypatch.setattr("launcher.sweep.arrays._SETTLE_S", 0.0)
    return fake


def submitted_jobs(outputs: Path) -> list[str]:
    """The jobs of the newest attempts that have one."""
    found = [read_submission(run.attempts()[-1]) for run in Outputs(outputs).runs()]
    return sorted(s.job for s in found if s)


def test_five_points_are_two_arrays_and_once_only(slurm: FakeSlurm, tmp_path: Path) -> None:
    outputs = tmp_path / "outputs"
    done = slurm.launch(*WORDS, f"output_dir={outputs}")
    assert done.code == ExitCode.OK, done.text
    assert "10 expected = 5 submitted + 5 pruned + 0 duplicate + 0 finished + 0 running" in done.text
    assert [line.split()[2] for line in slurm.queued] == ["1", "2"]
    assert submitted_jobs(outputs) == ["101_0", "101_1", "102_0", "102_1", "102_2"]
    script = (slurm.folder / "script.2").read_text()
    assert "#SBATCH --array=0-2%3\n" in script
    assert "-m launcher.sweep.begin " in script
    assert "-m launcher.sweep.finish " in script
    (sweep,) = (outputs / "sweeps").iterdir()
    assert [p.state for p in read_sweep(SweepPaths(sweep)).points] == ["submitted", "pruned"] * 5
    again = slurm.launch(*WORDS, f"output_dir={outputs}")
    assert "10 expected = 0 submitted + 5 pruned + 0 duplicate + 0 finished + 5 running" in again.text
    assert len(slurm.queued) == 2


@pytest.mark.parametrize(("moment", "adopted"), [("kill-before", 0), ("kill-after", 2)])
def test_a_killed_launcher_loses_nothing_and_doubles_nothing(
    moment: str, adopted: int, slurm: FakeSlurm, tmp_path: Path
) -> None:
    """Killed by the first sbatch, before or after Slurm has the array of 2 points."""
    outputs = tmp_path / "outputs"
    (slurm.folder / moment).touch()
    command = [sys.executable, "-m", "launcher", *WORDS, f"output_dir={outputs}"]
    assert subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.DEVNULL).returncode == -9
    (slurm.folder / moment).unlink()
    assert submitted_jobs(outputs) == []
    before = len(slurm.queued)
    done = slurm.launch(*WORDS, f"output_dir={outputs}")
    assert done.code == ExitCode.OK, done.text
    assert f"{5 - adopted} submitted + 5 pruned + 0 duplicate + 0 finished + {adopted} running" in done.text
    assert sum(int(line.split()[2] or "0") + 1 for line in slurm.queued) == 5
    jobs = submitted_jobs(outputs)
    assert len(set(jobs)) == 5
    for job in jobs:  # each element finds its pickle, which is of its own attempt
        assert len(list((outputs / "sweeps").glob(f"*/array_*/logs/{job}_submitted.pkl"))) == 1
    assert before == (1 if adopted else 0)


def test_a_profile_that_knows_the_size_of_an_array_is_not_asked_again(slurm: FakeSlurm, tmp_path: Path) -> None:
    (slurm.folder / "scontrol").write_text("#!/bin/sh\nexit 1\n")
    done = slurm.launch(*WORDS, "cluster.max_array_size=2", f"output_dir={tmp_path / 'outputs'}")
    assert done.code == ExitCode.OK, done.text
    assert submitted_jobs(tmp_path / "outputs") == ["101", "102_0", "102_1", "103_0", "103_1"]


def test_a_single_run_finds_itself_in_an_array_that_nobody_recorded(slurm: FakeSlurm, tmp_path: Path) -> None:
    """A killed launcher's array of two, whose points are asked for one by one."""
    outputs = tmp_path / "outputs"
    (slurm.folder / "kill-after").touch()
    command = [sys.executable, "-m", "launcher", *WORDS, f"output_dir={outputs}"]
    assert subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.DEVNULL).returncode == -9
    (slurm.folder / "kill-after").unlink()
    for seed in (1, 2):
        done = slurm.launch("cluster=slurm", f"job.seed={seed}", "parallelism=single", f"output_dir={outputs}")
        assert done.code == ExitCode.SUBMISSION
        assert "the same run is running" in done.text
    assert submitted_jobs(outputs) == ["101_0", "101_1"]
    assert len(slurm.queued) == 1


def test_one_launcher_at_a_time(slurm: FakeSlurm, tmp_path: Path) -> None:
    """A record without a job, in a sweep whose lock is held, is of a launcher that lives."""
    outputs = Outputs(tmp_path / "outputs")
    assert slurm.launch(*WORDS, f"output_dir={outputs.root}").code == ExitCode.OK
    array = outputs.arrays()[0]
    write_json(array.record, data=asdict(replace(read_array(array), job=None)))
    with only_submitter(array.sweep):
        with pytest.raises(SubmissionError, match="another launcher is submitting"):
            adopt_orphans(outputs, own=outputs.sweep("another"))
        done = slurm.launch(*WORDS, f"output_dir={outputs.root}")
    assert done.code == ExitCode.SUBMISSION
    assert "another launcher is submitting" in done.text


def test_a_folder_that_cannot_be_written(slurm: FakeSlurm, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = slurm.launch(*WORDS, f"output_dir={tmp_path}/file")
    assert done.code == ExitCode.SUBMISSION
    assert "hint: output_dir=" in done.text


def test_arrays_wait_for_each_other_under_a_limit_of_gpus(slurm: FakeSlurm, tmp_path: Path) -> None:
    words = (*WORDS, "platform=hopper", "job.num_prompts=320", "cluster.max_gpus=2", f"output_dir={tmp_path}/outputs")
    done = slurm.launch(*words)
    assert done.code == ExitCode.OK, done.text
    first, second = ((slurm.folder / f"script.{n}").read_text() for n in (1, 2))
    assert "--array=0-1%2\n" in first
    assert "--dependency" not in first
    assert "--array=0-2%2\n" in second
    assert "--dependency=afterany:101\n" in second


def test_a_refused_array_is_said_and_is_free_to_be_run(slurm: FakeSlurm, tmp_path: Path) -> None:
    outputs = tmp_path / "outputs"
    sbatch = (slurm.folder / "sbatch").read_text()
    (slurm.folder / "sbatch").write_text(
        "#!/bin/sh\necho 'sbatch: error: invalid partition specified: x' >&2\nexit 1\n"
    )
    done = slurm.launch(*WORDS, f"output_dir={outputs}")
    assert done.code == ExitCode.SUBMISSION
    assert "5 run(s) were not submitted" in done.text
    assert "hint: cluster.partition=NAME" in done.text
    assert {read_outcome(run.attempts()[-1]).state for run in Outputs(outputs).runs()} == {"refused"}  # pyright: ignore
    (slurm.folder / "sbatch").write_text(sbatch)
    assert "5 submitted" in slurm.launch(*WORDS, f"output_dir={outputs}").text


def test_a_dependency_of_the_person_stays(slurm: FakeSlurm, tmp_path: Path) -> None:
    outputs = Outputs(tmp_path / "outputs")
    words = (*WORDS, "+cluster.sbatch.dependency='afterok:7'", f"output_dir={outputs.root}")
    assert slurm.launch(*words).code == ExitCode.OK
    config = compose([w for w in words if w != "-m" and ",2" not in w and ",ep2" not in w]).config
    asked = array_parameters(config, array=outputs.arrays()[0], name="n", code=tmp_path, limit=2, after="9:10")
    assert asked["dependency"] == "afterok:7,afterany:9:10"


@pytest.mark.parametrize(
    ("variables", "index", "log"),
    [
        ({"SLURM_JOB_ID": "103", "SLURM_ARRAY_JOB_ID": "101", "SLURM_ARRAY_TASK_ID": "1"}, 1, "101_1_0_log.out"),
        ({"SLURM_JOB_ID": "101"}, 0, "101_0_log.out"),
    ],
)
def test_an_element_ends_its_own_attempt(
    variables: dict[str, str], index: int, log: str, slurm: FakeSlurm, tmp_path: Path
) -> None:
    outputs = Outputs(tmp_path / "outputs")
    assert slurm.launch(*WORDS, f"output_dir={outputs.root}").code == ExitCode.OK
    array = outputs.arrays()[0]
    (array.logs / log).write_text("the last words of rank 0\n")
    assert finish_element(array, variables=variables, srun_code=1) == ExitCode.EXPERIMENT
    attempts = [AttemptPaths(Path(a)) for a in read_array(array).attempts]
    assert [a.outcome.exists() for a in attempts] == [i == index for i in range(2)]
    outcome = read_outcome(attempts[index])
    assert outcome is not None
    assert "the last words of rank 0" in outcome.error


def test_a_thousand_runs_are_asked_for_once(slurm: FakeSlurm, tmp_path: Path) -> None:
    """One squeue for all points of a sweep, not one for each."""
    outputs = tmp_path / "outputs"
    slurm.launch(*WORDS, f"output_dir={outputs}")
    shutil.move(slurm.folder / "squeue", slurm.folder / "the-squeue")
    (slurm.folder / "squeue").write_text(
        f'#!/bin/sh\necho asked >> {slurm.folder}/asked\nexec {slurm.folder}/the-squeue "$@"\n'
    )
    (slurm.folder / "squeue").chmod(0o755)
    assert "5 running" in slurm.launch("plan", *WORDS, f"output_dir={outputs}").text
    assert (slurm.folder / "asked").read_text() == "asked\n"


def test_the_last_element_writes_the_page(slurm: FakeSlurm, tmp_path: Path) -> None:
    outputs = Outputs(tmp_path / "outputs")
    assert slurm.launch(*WORDS, f"output_dir={outputs.root}").code == ExitCode.OK
    arrays = outputs.arrays()
    elements = [(array, index) for array in arrays for index in range(len(read_array(array).attempts))]
    for number, (array, index) in enumerate(elements, start=1):
        assert not array.sweep.page.exists()
        variables = {"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "101", "SLURM_ARRAY_TASK_ID": str(index)}
        finish_element(array, variables=variables, srun_code=1)
        assert array.sweep.page.exists() == (number == 5)
    assert "5 failed, 5 pruned" in arrays[0].sweep.page.read_text()

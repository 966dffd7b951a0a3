"""Ranks that outlived their launcher: found, shown, refused a second time, and ended. Stand-ins for the processes."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.__main__ import main
from launcher.errors import ExitCode
from launcher.local import end_processes, processes_here
from launcher.outcome import read_outcome
from launcher.paths import AttemptPaths, Outputs, RunPaths
from launcher.schema.cluster import ClusterKind
from launcher.status import render_rows, rows_of
from launcher.submission import write_submission
from launcher.submit import running_attempt

DEAD = 2**22 + 1
IGNORES_SIGINT = "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); print(flush=True); sys.stdin.read()"


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptPaths:
    """An attempt whose launcher was killed."""
    paths = Outputs(tmp_path).run("run", digest="0123abcd").new_attempt()
    paths.resolved.touch()
    paths.logs.mkdir()
    write_submission(paths, cluster=ClusterKind.local, job="4")
    paths.submission.write_text(json.dumps(json.loads(paths.submission.read_text()) | {"pid": DEAD}))
    return paths


@pytest.fixture
def rank(attempt: AttemptPaths) -> "Iterator[subprocess.Popen[str]]":
    """A process with the command line of a rank; it ignores SIGINT, as under a script's `&`."""
    command = [sys.executable, "-c", IGNORES_SIGINT, "submitit.core._submit", str(attempt.logs)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


def test_ranks_are_found_by_their_folder_and_ended(attempt: AttemptPaths, rank: "subprocess.Popen[str]") -> None:
    other = RunPaths(attempt.root.parent).new_attempt()
    assert processes_here()[attempt.root.resolve()] == [rank.pid]
    end_processes(other)
    assert rank.poll() is None
    end_processes(attempt)
    assert rank.wait() == -signal.SIGKILL
    assert attempt.root.resolve() not in processes_here()


def test_a_link_to_the_folder_is_the_folder(attempt: AttemptPaths, rank: "subprocess.Popen[str]") -> None:
    link = attempt.root.parent.parent / "link"
    link.symlink_to(attempt.root.parent)
    end_processes(RunPaths(link).attempts()[0])
    assert rank.wait() == -signal.SIGKILL


def test_their_run_goes_on_until_it_is_cancelled(
    attempt: AttemptPaths, rank: "subprocess.Popen[str]", capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunPaths(attempt.root.parent)
    text = render_rows(rows_of([attempt]))
    assert "running" in text.splitlines()[1]
    assert f"its launcher was killed, its ranks go on; to end them: python -m launcher cancel {attempt.root}" in text
    assert running_attempt(run) == attempt
    assert main(["cancel", str(attempt.root)]) == ExitCode.OK
    assert f"cancelled: {attempt.root}" in capsys.readouterr().out
    assert rank.wait() == -signal.SIGKILL
    outcome = read_outcome(attempt)
    assert outcome is not None
    assert outcome.state == "cancelled"
    assert running_attempt(run) is None


def test_without_ranks_it_is_over(attempt: AttemptPaths, capsys: pytest.CaptureFixture[str]) -> None:
    assert [row.state for row in rows_of([attempt])] == ["gone"]
    assert main(["cancel", str(attempt.root)]) == ExitCode.OK
    assert "over already" in capsys.readouterr().out

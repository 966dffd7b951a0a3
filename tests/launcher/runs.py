"""Runs of the launcher as a person starts them: a subprocess, its output, and what it leaves behind."""

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from launcher.paths import AttemptPaths, Outputs
from launcher.records import RankRecord, read_ranks

ROOT = Path(__file__).resolve().parent.parent.parent
QUICK = ("job.num_prompts=4", "job.num_steps=0", "generation.max_new_tokens=8", "cluster.timeout_min=5")


@dataclass(frozen=True, kw_only=True)
class Done:
    """`text` is stdout and stderr together."""

    code: int
    text: str


def launch(*words: str) -> Done:
    """`python -m launcher WORDS` to its end."""
    process = start(*words)
    text, _ = process.communicate(timeout=300)
    return Done(code=process.returncode, text=text)


def start(*words: str) -> "subprocess.Popen[str]":
    """`python -m launcher WORDS`, started as a terminal does: a suite in the background of a script ignores SIGINT."""
    command = ["env", "--default-signal=INT", sys.executable, "-m", "launcher", *words]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def only_attempt(outputs: Path) -> AttemptPaths:
    """The one attempt of the one run in a folder."""
    (run,) = Outputs(outputs).runs()
    (attempt,) = run.attempts()
    return attempt


def wait_for_stage(outputs: Path, *, stage: str) -> list[RankRecord]:
    """The ranks' records once rank 0 has come as far as `stage`."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        found = list(outputs.glob("*/attempt_1/progress.jsonl"))
        if found and stage in found[0].read_text():
            return read_ranks(AttemptPaths(found[0].parent))
        time.sleep(0.2)
    raise AssertionError(f"no run in {outputs} came to {stage}")


def is_running(pid: int) -> bool:
    """True for a process that exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def processes_in(folder: Path) -> list[int]:
    """Processes that have the folder in their command line: ranks and their controller."""
    found = [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit() and int(p.name) != os.getpid()]
    return [pid for pid in found if str(folder) in _command_line(pid)]


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError):
        return ""

"""What runs on this machine for local attempts: submitit's controller and its ranks, as /proc has them.

They outlive a launcher that was killed, which submitit means them to. Owns finding and ending them.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from launcher.paths import AttemptPaths
from launcher.submission import Submission

_MODULES = ("submitit.local._local", "submitit.core._submit")
_GRACE_S = 2.0


def processes_here() -> dict[Path, list[int]]:
    """The processes of each attempt that has any, by its folder, resolved. One look at /proc for all; no zombies."""
    found: dict[Path, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        words = _words(path)
        if any(module in words for module in _MODULES):
            found.setdefault(Path(words[-1]).resolve().parent, []).append(int(path.parent.name))
    return found


def _words(path: Path) -> list[str]:
    """A zombie has none, and a process that has just ended has no file."""
    try:
        return os.fsdecode(path.read_bytes()).rstrip("\0").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def goes_on(paths: AttemptPaths, *, submission: Submission, processes: dict[Path, list[int]]) -> bool:
    """A local attempt without an outcome has a launcher on this machine, or ranks that outlived it."""
    return submission.launcher_lives or paths.root.resolve() in processes


def end_processes(paths: AttemptPaths) -> None:
    """Ask what runs for the attempt here to end, then kill it. Twice, since the controller may have started one more.

    A launcher that a script put into the background ignores SIGINT, and so do its ranks: they are killed.
    """
    for sign in (signal.SIGINT, signal.SIGKILL, signal.SIGKILL):
        for pid in _processes(paths):
            with suppress(ProcessLookupError):
                os.kill(pid, sign)
        deadline = time.monotonic() + _GRACE_S
        while _processes(paths):
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        else:
            return


def _processes(paths: AttemptPaths) -> list[int]:
    return processes_here().get(paths.root.resolve(), [])

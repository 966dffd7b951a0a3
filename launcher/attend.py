"""The verbs for runs that are on their way: status, logs, cancel. Owns their words; states are `launcher.status`'."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from launcher.errors import ConfigError, ExitCode
from launcher.outcome import write_outcome
from launcher.paths import AttemptPaths
from launcher.selection import newest_attempts, outputs_among, select_one
from launcher.slurm.queue import cancel_jobs, job_states
from launcher.status import render_rows, rows_of, to_json
from launcher.submission import Submission, read_submission

_POLL_S = 0.5
_ASK_S = 5.0


def show_status(words: Sequence[str]) -> ExitCode:
    """Print a row for each run named, or for the newest attempt of every run."""
    outputs, words = outputs_among(words)
    names = [word for word in words if word != "--json"]
    attempts = [select_one(name, outputs=outputs, wanted=_any, what="an attempt") for name in names]
    rows = rows_of(attempts if names else newest_attempts(outputs))
    print(to_json(rows) if "--json" in words else render_rows(rows))
    return ExitCode.OK


def show_logs(words: Sequence[str]) -> ExitCode:
    """Print the log of a rank (`rank=N`, 0 where it is not said); with -f also what comes, until the run is over."""
    outputs, words = outputs_among(words)
    ranks = [word.partition("=")[2] for word in words if word.startswith("rank=")]
    names = [word for word in words if word != "-f" and not word.startswith("rank=")] or ["latest"]
    if len(names) > 1 or not all(rank.isdigit() for rank in ranks):
        raise ConfigError("error: logs takes one run and a rank\nhint: python -m launcher logs -f latest rank=0")
    paths = select_one(names[0], outputs=outputs, wanted=_was_submitted, what="a log")
    submission = read_submission(paths)
    assert submission is not None, "selected by having one"
    log = paths.log(submission.job, rank=int(ranks[-1]) if ranks else 0)
    print(f"==> {log}", file=sys.stderr)
    offset = _print_from(log, offset=0)
    if "-f" in words:
        with suppress(KeyboardInterrupt):  # the person has seen enough; the run goes on
            _follow(log, offset=offset, paths=paths, submission=submission)
    return ExitCode.OK


def _print_from(log: Path, *, offset: int) -> int:
    """Print what is in the file from `offset` on; the offset after it."""
    if not log.exists():
        return offset
    with log.open("rb") as file:
        file.seek(offset)
        sys.stdout.write(file.read().decode(errors="replace"))
        sys.stdout.flush()
        return file.tell()


def _follow(log: Path, *, offset: int, paths: AttemptPaths, submission: Submission) -> None:
    asked = time.monotonic()
    while not paths.outcome.exists():
        offset = _print_from(log, offset=offset)
        if time.monotonic() - asked > _ASK_S:
            asked = time.monotonic()
            if not _is_on(submission):
                break
        time.sleep(_POLL_S)
    _print_from(log, offset=offset)


def _is_on(submission: Submission) -> bool:
    if submission.is_slurm:
        return job_states([submission.job])[submission.job].is_active
    return submission.launcher_lives


def cancel(words: Sequence[str]) -> ExitCode:
    """End the runs named; what is over already is said and left."""
    outputs, names = outputs_among(words)
    if not names:
        raise ConfigError("error: cancel needs a run\nhint: python -m launcher cancel latest")
    chosen = [select_one(name, outputs=outputs, wanted=_was_submitted, what="a job") for name in names]
    for paths in dict.fromkeys(chosen):
        submission = read_submission(paths)
        assert submission is not None, "selected by having one"
        if paths.outcome.exists() or not _is_on(submission):
            print(f"over already: {paths.root}")
            continue
        _cancel(paths, submission=submission)
        print(f"cancelled: {paths.root}")
    return ExitCode.OK


def _cancel(paths: AttemptPaths, *, submission: Submission) -> None:
    """A local run's launcher ends its ranks and writes the outcome itself."""
    if not submission.is_slurm:
        os.kill(submission.pid, signal.SIGINT)
        return
    cancel_jobs([submission.job])
    write_outcome(paths, state="cancelled", exit_code=ExitCode.EXPERIMENT)


def _any(_: AttemptPaths) -> bool:
    return True


def _was_submitted(paths: AttemptPaths) -> bool:
    return paths.submission.exists()

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
from launcher.files import read_json
from launcher.going import going
from launcher.local import end_processes
from launcher.outcome import write_outcome
from launcher.paths import AttemptPaths
from launcher.selection import newest_attempts, outputs_among, select_one, select_several
from launcher.slurm.queue import cancel_jobs
from launcher.status import render_rows, rows_of, to_json
from launcher.submission import Submission, read_submission

_POLL_S = 0.5
_ASK_S = 5.0


def show_status(words: Sequence[str]) -> ExitCode:
    """Print a row for each run named and each point of a sweep named, or for the newest attempt of every run."""
    outputs, words = outputs_among(words, flags=["--json"])
    names = [word for word in words if word != "--json"]
    attempts = select_several(names, outputs=outputs, wanted=_any, what="an attempt")
    rows = rows_of(attempts if names else newest_attempts(outputs))
    print(to_json(rows) if "--json" in words else render_rows(rows))
    return ExitCode.OK


def show_logs(words: Sequence[str]) -> ExitCode:
    """Print the log of a rank (`rank=N`, 0 where it is not said); with -f also what comes, until the run is over."""
    outputs, words = outputs_among(words, flags=["-f"])
    ranks = [word.partition("=")[2] for word in words if word.startswith("rank=")]
    names = [word for word in words if word != "-f" and not word.startswith("rank=")] or ["latest"]
    if len(names) > 1 or not all(rank.isdigit() for rank in ranks):
        raise ConfigError("error: logs takes one run and a rank\nhint: python -m launcher logs -f latest rank=0")
    paths = select_one(names[0], outputs=outputs, wanted=_was_submitted, what="a log")
    submission = read_submission(paths)
    assert submission is not None, "selected by having one"
    log = paths.log(submission.job, rank=_checked_rank(int(ranks[-1]) if ranks else 0, paths=paths))
    print(f"==> {log}", file=sys.stderr)
    offset = _print_from(log, offset=0)
    if "-f" in words:
        with suppress(KeyboardInterrupt):  # the person has seen enough; the run goes on
            _follow(log, offset=offset, paths=paths)
    return ExitCode.OK


def _checked_rank(rank: int, *, paths: AttemptPaths) -> int:
    """The rank, where the run has it; ConfigError elsewhere."""
    num_ranks: int = read_json(paths.plan)["layout"]["world_size"]
    if rank < num_ranks:
        return rank
    there = "there is rank 0 only" if num_ranks == 1 else f"there are ranks 0 to {num_ranks - 1}"
    raise ConfigError(f"error: rank={rank}, {there}\nhint: python -m launcher logs {paths.root} rank=0")


def _print_from(log: Path, *, offset: int) -> int:
    """Print what is in the file from `offset` on; the offset after it."""
    if not log.exists():
        return offset
    with log.open("rb") as file:
        file.seek(offset)
        sys.stdout.write(file.read().decode(errors="replace"))
        sys.stdout.flush()
        return file.tell()


def _follow(log: Path, *, offset: int, paths: AttemptPaths) -> None:
    asked = time.monotonic()
    while not paths.outcome.exists():
        offset = _print_from(log, offset=offset)
        if time.monotonic() - asked > _ASK_S:
            asked = time.monotonic()
            if not going([paths]):
                break
        time.sleep(_POLL_S)
    _print_from(log, offset=offset)


def cancel(words: Sequence[str]) -> ExitCode:
    """End the runs named; what is over already is said and left."""
    outputs, names = outputs_among(words)
    if not names:
        raise ConfigError("error: cancel needs a run\nhint: python -m launcher cancel latest")
    chosen = select_several(names, outputs=outputs, wanted=_was_submitted, what="a job")
    on = going(chosen)
    cancel_jobs([submission.job for submission in on.values() if submission.is_slurm])
    for paths in chosen:
        if paths in on:
            _record_end(paths, submission=on[paths])
        print(f"{'cancelled' if paths in on else 'over already'}: {paths.root}")
    return ExitCode.OK


def _record_end(paths: AttemptPaths, *, submission: Submission) -> None:
    """A local run's launcher has its ranks save and end, and writes the outcome itself; ranks without one are ended."""
    if not submission.is_slurm and submission.launcher_lives:
        # Not SIGINT: a launcher that a script put into the background ignores it.
        os.kill(submission.pid, signal.SIGTERM)
        return
    if not submission.is_slurm:
        end_processes(paths)
    write_outcome(paths, state="cancelled", exit_code=ExitCode.EXPERIMENT)


def _any(_: AttemptPaths) -> bool:
    return True


def _was_submitted(paths: AttemptPaths) -> bool:
    return paths.submission.exists()

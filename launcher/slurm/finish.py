"""The end of a job's script, after its ranks: outcome on disk, triage in the log, exit code for the shell.

`python -m launcher.slurm.finish ATTEMPT_FOLDER SRUN_CODE`, on the job's first node. The shell requeues the job where
the code is INTERRUPTED's. A job whose first node died does not come here, `launcher.slurm.begin` then ends its life.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from launcher.errors import ExitCode, LauncherError
from launcher.files import read_json
from launcher.outcome import write_outcome
from launcher.paths import AttemptPaths
from launcher.resolved import load_resolved
from launcher.slurm.ending import ending, words_of_life
from launcher.slurm.lives import Cause, Life, close_life, why_not_again
from launcher.triage import Failure, triage
from zero_kl.verdict import read_report


def finish(paths: AttemptPaths, *, job: str, srun_code: int) -> ExitCode:
    """Write the outcome; the exit code of the first failing rank, or the verdict's. INTERRUPTED: there is no outcome,
    the job is to be requeued."""
    num_ranks: int = read_json(paths.plan)["layout"]["world_size"]
    words = words_of_life(paths.log(job, rank=0))
    found = ending(paths, num_ranks=num_ranks, words=words, srun_code=srun_code)
    if found.failure is not None:
        return _failed(found.failure, paths=paths, job=job)
    lives = close_life(paths, job=job, cause=found.cause)
    if found.cause is Cause.FINISHED:
        code = verdict_code(paths)
        write_outcome(paths, state="finished", exit_code=code)
        return code
    if found.cause is Cause.CANCELLED:
        write_outcome(paths, state="cancelled", exit_code=ExitCode.EXPERIMENT)
        return ExitCode.EXPERIMENT
    return _again(lives, paths=paths)


def _failed(failure: Failure, *, paths: AttemptPaths, job: str) -> ExitCode:
    """The log gets the triage before anything is written: the disk may be full."""
    text = triage(failure, log=paths.log(job, rank=failure.rank), root=paths.root)
    print(text, flush=True)
    close_life(paths, job=job, cause=Cause.FAILED)
    write_outcome(paths, state="failed", exit_code=failure.exit_code, error=text)
    return ExitCode(failure.exit_code) if failure.exit_code in set(ExitCode) else ExitCode.EXPERIMENT


def _again(lives: list[Life], *, paths: AttemptPaths) -> ExitCode:
    """INTERRUPTED where the job is to run again; else a failed outcome that says why not."""
    last = lives[-1]
    refusal = why_not_again(lives, restarts=load_resolved(paths.resolved).cluster.restarts)
    if refusal:
        print(refusal, flush=True)
        write_outcome(paths, state="failed", exit_code=ExitCode.EXPERIMENT, error=refusal)
        return ExitCode.EXPERIMENT
    print(f"life {last.life} ended with {last.cause} at step {last.saved_step}; the job is requeued", flush=True)
    return ExitCode.INTERRUPTED


def verdict_code(paths: AttemptPaths) -> ExitCode:
    """5 where zero was required and not reached; a job without a verdict is fine."""
    if not paths.report.exists():
        return ExitCode.OK
    report = read_report(paths.report)
    return ExitCode.EXPERIMENT if report.required and not report.is_zero else ExitCode.OK


def code_of(end: Callable[[], ExitCode]) -> ExitCode:
    """The exit code of an end that is written, and EXPERIMENT for one that cannot be: a full disk, say."""
    try:
        return end()
    except (LauncherError, OSError) as error:
        try:
            print(error, file=sys.stderr, flush=True)
        except OSError:  # the log is on the same disk; what Python still holds of it would change the exit code
            nowhere = os.open(os.devnull, os.O_WRONLY)
            for stream in (sys.stdout, sys.stderr):
                os.dup2(nowhere, stream.fileno())
        return ExitCode.EXPERIMENT


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m launcher.slurm.finish ATTEMPT_FOLDER SRUN_CODE")
    attempt = AttemptPaths(Path(sys.argv[1]))
    sys.exit(code_of(lambda: finish(attempt, job=os.environ["SLURM_JOB_ID"], srun_code=int(sys.argv[2]))))

"""The first line of a requeued job's script: closes the life before, clears its traces, or refuses another life.

`python -m launcher.slurm.begin ATTEMPT_FOLDER`, on the job's first node. A job that runs for the first time skips it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from launcher.errors import ExitCode
from launcher.outcome import write_outcome
from launcher.paths import AttemptPaths
from launcher.records import ProgressWriter
from launcher.resolved import load_resolved
from launcher.slurm.ending import LIFE, interrupted_by, slurms_cause, words_of_life
from launcher.slurm.lives import Cause, close_life, is_open, put_away, read_lives, why_not_again


def begin(paths: AttemptPaths, *, job: str) -> ExitCode:
    """Make the folder ready for the next life; EXPERIMENT and a failed outcome where there must be none.

    A life that could not write its own end ended with its first node, unless Slurm's words say otherwise.
    """
    if is_open(paths):
        words = words_of_life(paths.log(job, rank=0))
        close_life(paths, job=job, cause=slurms_cause(words) or interrupted_by(paths) or Cause.NODE_FAILURE)
    lives = read_lives(paths)
    refusal = why_not_again(lives, restarts=load_resolved(paths.resolved).cluster.restarts)
    if refusal:
        write_outcome(paths, state="failed", exit_code=ExitCode.EXPERIMENT, error=refusal)
        print(refusal)
        return ExitCode.EXPERIMENT
    put_away(paths)
    number = len(lives) + 1
    print(f"\n{LIFE} {number} of job {job}; the last one ended with {lives[-1].cause}")
    ProgressWriter(paths.progress)(f"life {number}", done=0, total=1)
    return ExitCode.OK


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m launcher.slurm.begin ATTEMPT_FOLDER")
    sys.exit(begin(AttemptPaths(Path(sys.argv[1])), job=os.environ["SLURM_JOB_ID"]))

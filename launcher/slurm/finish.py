"""The last line of a job's script, after its ranks: outcome on disk, triage in the log, exit code for Slurm.

`python -m launcher.slurm.finish ATTEMPT_FOLDER SRUN_CODE`, on the job's first node. A job that Slurm ends (time limit,
cancelled, lost node) does not come here; who watches takes its state from Slurm.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from launcher.errors import ExitCode
from launcher.files import read_json
from launcher.outcome import write_outcome
from launcher.paths import AttemptPaths
from launcher.triage import Failure, first_failure_of_step, triage
from zero_kl.verdict import read_report


def finish(paths: AttemptPaths, *, job: str, srun_code: int) -> ExitCode:
    """Write the outcome; the exit code of the first failing rank, or the verdict's."""
    num_ranks: int = read_json(paths.plan)["layout"]["world_size"]
    srun_log = paths.log(job, rank=0)
    failure = first_failure_of_step(paths, num_ranks=num_ranks, srun_log=srun_log)
    if failure is None and srun_code != 0:
        failure = Failure(
            rank=0,
            text=f"error: srun ended with {srun_code}, after every rank had finished",
            exit_code=ExitCode.EXPERIMENT,
        )
    if failure is not None:
        text = triage(failure, log=paths.log(job, rank=failure.rank), root=paths.root)
        print(text, flush=True)
        write_outcome(paths, state="failed", exit_code=failure.exit_code, error=text)
        return ExitCode(failure.exit_code) if failure.exit_code in set(ExitCode) else ExitCode.EXPERIMENT
    code = verdict_code(paths)
    write_outcome(paths, state="finished", exit_code=code)
    return code


def verdict_code(paths: AttemptPaths) -> ExitCode:
    """5 where zero was required and not reached; a job without a verdict is fine."""
    if not paths.report.exists():
        return ExitCode.OK
    report = read_report(paths.report)
    return ExitCode.EXPERIMENT if report.required and not report.is_zero else ExitCode.OK


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m launcher.slurm.finish ATTEMPT_FOLDER SRUN_CODE")
    sys.exit(finish(AttemptPaths(Path(sys.argv[1])), job=os.environ["SLURM_JOB_ID"], srun_code=int(sys.argv[2])))

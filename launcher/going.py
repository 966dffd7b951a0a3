"""Which attempts are on: in Slurm's queue, or with a launcher or ranks on this machine. One question for any number."""

from __future__ import annotations

from collections.abc import Iterable

from launcher.local import goes_on, processes_here
from launcher.paths import AttemptPaths
from launcher.slurm.queue import job_states
from launcher.submission import Submission, read_submission


def going(attempts: Iterable[AttemptPaths]) -> dict[AttemptPaths, Submission]:
    """Those that are on, and who runs them, in the order given.

    Raises SubmissionError where a job's state is needed and Slurm does not answer.
    """
    found = {a: s for a in attempts if not a.outcome.exists() and (s := read_submission(a)) is not None}
    states = job_states(s.job for s in found.values() if s.is_slurm)
    processes = {} if all(s.is_slurm for s in found.values()) else processes_here()
    return {
        a: s
        for a, s in found.items()
        if (states[s.job].is_active if s.is_slurm else goes_on(a, submission=s, processes=processes))
    }

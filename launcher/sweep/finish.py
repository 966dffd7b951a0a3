"""The last line of an array's script: the end of one element, as `launcher.slurm.finish` is for a single job.

`python -m launcher.sweep.finish ARRAY_FOLDER SRUN_CODE`, on the job's first node.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from launcher.errors import ExitCode
from launcher.paths import ArrayPaths, AttemptPaths
from launcher.slurm.finish import finish
from launcher.sweep.arrays import read_array


def finish_element(paths: ArrayPaths, *, variables: Mapping[str, str], srun_code: int) -> ExitCode:
    """Write the outcome of the element that Slurm's variables name. An array of one is a plain job without an index."""
    index = variables.get("SLURM_ARRAY_TASK_ID")
    attempt = AttemptPaths(Path(read_array(paths).attempts[int(index or "0")]))
    job = variables["SLURM_JOB_ID"] if index is None else f"{variables['SLURM_ARRAY_JOB_ID']}_{index}"
    return finish(attempt, job=job, srun_code=srun_code)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m launcher.sweep.finish ARRAY_FOLDER SRUN_CODE")
    sys.exit(finish_element(ArrayPaths(Path(sys.argv[1])), variables=os.environ, srun_code=int(sys.argv[2])))

"""The last line of an array's script: the end of one element, as `launcher.slurm.finish` is for a single job.

`python -m launcher.sweep.finish ARRAY_FOLDER SRUN_CODE`, on the job's first node.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from launcher.errors import ExitCode
from launcher.paths import ArrayPaths
from launcher.slurm.finish import code_of, finish
from launcher.sweep.arrays import element_of
from launcher.sweep.report import write_last_page


def finish_element(paths: ArrayPaths, *, variables: Mapping[str, str], srun_code: int) -> ExitCode:
    """Write the outcome of the element that Slurm's variables name."""
    attempt, job = element_of(paths, variables=variables)
    code = finish(attempt, job=job, srun_code=srun_code)
    write_last_page(paths.sweep)
    return code


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m launcher.sweep.finish ARRAY_FOLDER SRUN_CODE")
    array = ArrayPaths(Path(sys.argv[1]))
    sys.exit(code_of(lambda: finish_element(array, variables=os.environ, srun_code=int(sys.argv[2]))))

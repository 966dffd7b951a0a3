"""The first line of a requeued array element's script, as `launcher.slurm.begin` is for a single job.

`python -m launcher.sweep.begin ARRAY_FOLDER`, on the job's first node.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from launcher.paths import ArrayPaths
from launcher.slurm.begin import begin
from launcher.sweep.arrays import element_of

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m launcher.sweep.begin ARRAY_FOLDER")
    attempt, job = element_of(ArrayPaths(Path(sys.argv[1])), variables=os.environ)
    sys.exit(begin(attempt, job=job))

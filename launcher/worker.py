"""One rank: reads the frozen configuration, refuses again, sets the environment once, runs the job, leaves a record.

`python -m launcher.worker ATTEMPT_FOLDER` under torchrun, Slurm or alone; submitit calls `run_rank`. No Hydra here.
"""

from __future__ import annotations

import errno
import faulthandler
import sys
import traceback
from pathlib import Path

from launcher.environment import apply_environment
from launcher.errors import ExitCode, Interrupted, LauncherError
from launcher.files import disk_note
from launcher.interruption import end_at_once
from launcher.paths import AttemptPaths
from launcher.placement import Placement, read_placement
from launcher.records import ProgressWriter, RankState, write_rank
from launcher.resolved import load_resolved
from launcher.validate import validate

_FULL_OR_READ_ONLY = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)


def run_rank(attempt: str) -> None:
    """Run this rank of the attempt. Ends with SystemExit of the failure's exit code; returns where all went well.

    Returns after an interruption too: srun ends all ranks when the first ends with another code than 0.
    """
    end_at_once()
    faulthandler.enable()  # a crash in native code says where it was
    paths = AttemptPaths(Path(attempt))
    placement = read_placement()
    try:
        write_rank(paths, rank=placement.rank, state=RankState.RUNNING)
        _run(paths, placement=placement)
        write_rank(paths, rank=placement.rank, state=RankState.FINISHED)
    except Interrupted as end:
        print(end, file=sys.stderr, flush=True)
        write_rank(paths, rank=placement.rank, state=RankState.INTERRUPTED, exit_code=end.exit_code, error=str(end))
    except LauncherError as error:
        _fail(paths, placement=placement, code=error.exit_code, text=str(error))
    except OSError as error:
        text = f"error: {error}"
        if error.errno in _FULL_OR_READ_ONLY:
            text = f"error: the output folder cannot be written: {error}\nhint: output_dir=/a/folder/with/space"
        _fail(paths, placement=placement, code=ExitCode.EXPERIMENT, text=text)
    except Exception as error:  # noqa: BLE001  this is the rank's `__main__`: every error becomes its record and exit code
        _fail(paths, placement=placement, code=ExitCode.EXPERIMENT, text=f"{type(error).__name__}: {error}")


def _run(paths: AttemptPaths, *, placement: Placement) -> None:
    config = load_resolved(paths.resolved)
    validate(config).raise_if_invalid()
    apply_environment(config)
    progress = ProgressWriter(paths.progress if placement.rank == 0 else None)

    from launcher.jobs import run_job  # imports torch: only now is the environment set

    run_job(config, paths=paths, placement=placement, progress=progress)


def _fail(paths: AttemptPaths, *, placement: Placement, code: ExitCode, text: str) -> None:
    """Leave the error in the log and in the rank's record, then end with its code.

    A full disk shows as any error of whoever wrote to it (a failed conversion, say), so it is looked for here.
    """
    traceback.print_exc()
    text += "" if "hint: output_dir" in text else disk_note(paths.root)
    print(text, file=sys.stderr, flush=True)
    try:
        write_rank(paths, rank=placement.rank, state=RankState.FAILED, exit_code=code, error=text)
    except OSError as error:
        print(f"error: the record of rank {placement.rank} could not be written: {error}", file=sys.stderr, flush=True)
    raise SystemExit(code)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m launcher.worker ATTEMPT_FOLDER")
    run_rank(sys.argv[1])

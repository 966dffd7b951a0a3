"""Who runs an attempt, as one file: a launcher of this machine and its ranks, or a Slurm job."""

from __future__ import annotations

import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path

from launcher.files import read_json, write_json
from launcher.paths import AttemptPaths
from launcher.schema.cluster import ClusterKind


@dataclass(frozen=True, kw_only=True)
class Submission:
    """`host` and `pid` are the launcher's that submitted; a local run ends with it. Records before Slurm's name no
    cluster."""

    job: str
    host: str
    pid: int
    cluster: str = ClusterKind.local.value

    @property
    def is_slurm(self) -> bool:
        """True for a Slurm job, whose id is `job`."""
        return self.cluster == ClusterKind.slurm.value

    @property
    def launcher_lives(self) -> bool:
        """The launcher's process is on this machine and alive."""
        return self.host == socket.gethostname() and Path(f"/proc/{self.pid}").exists()


def write_submission(paths: AttemptPaths, *, cluster: ClusterKind, job: str) -> None:
    """Record that this process submitted the attempt. Raises OSError."""
    record = Submission(job=job, host=socket.gethostname(), pid=os.getpid(), cluster=cluster.value)
    write_json(paths.submission, data=asdict(record))


def read_submission(paths: AttemptPaths) -> Submission | None:
    """None where the attempt was never submitted."""
    data = read_json(paths.submission)
    return None if data is None else Submission(**data)

"""How an attempt ended, as one file: written last, by the one who saw all ranks end."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass

from launcher.errors import ExperimentError
from launcher.files import disk_note, read_json, write_json
from launcher.paths import AttemptPaths


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """`state` is finished (whatever the verdict), failed, cancelled or refused; `error` is the triage or empty."""

    state: str
    exit_code: int
    time: float
    error: str = ""

    @property
    def headline(self) -> str:
        """The first line of the error, and sbatch's first words where it refused; empty without an error."""
        first, *rest = self.error.splitlines() or [""]
        return "; ".join([first, *[line.strip() for line in rest if line.startswith("  sbatch: ")][:1]])


def write_outcome(paths: AttemptPaths, *, state: str, exit_code: int, error: str = "") -> None:
    """Raises ExperimentError where it cannot be written."""
    outcome = Outcome(state=state, exit_code=int(exit_code), time=time.time(), error=error)
    try:
        write_json(paths.outcome, data=asdict(outcome))
    except OSError as error_:
        raise ExperimentError(f"error: the outcome cannot be written: {error_}{disk_note(paths.root)}") from None


def read_outcome(paths: AttemptPaths) -> Outcome | None:
    """None where the attempt has not ended."""
    data = read_json(paths.outcome)
    return None if data is None else Outcome(**data)

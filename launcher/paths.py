"""Every path of a run and of the caches comes from the two classes here; nothing else joins folder names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_ATTEMPT = re.compile(r"attempt_(\d+)")


@dataclass(frozen=True)
class AttemptPaths:
    """The files of one attempt: `outputs/<name>-<hash8>/attempt_<n>/`."""

    root: Path

    @property
    def number(self) -> int:
        """The n of `attempt_<n>`."""
        match = _ATTEMPT.fullmatch(self.root.name)
        assert match, f"{self.root} is not an attempt folder"
        return int(match.group(1))

    @property
    def run(self) -> RunPaths:
        """The run that this is an attempt at."""
        return RunPaths(self.root.parent)

    @property
    def resolved(self) -> Path:
        """The frozen configuration: all that the worker reads."""
        return self.root / "resolved.yaml"

    @property
    def overrides(self) -> Path:
        """What was typed, one override a line."""
        return self.root / "overrides.txt"

    @property
    def plan(self) -> Path:
        """The plan as data."""
        return self.root / "plan.json"

    @property
    def versions(self) -> Path:
        """Installed versions of the packages that matter."""
        return self.root / "versions.json"

    @property
    def git(self) -> Path:
        """Commit and state of the working tree at submission."""
        return self.root / "git.json"

    @property
    def submission(self) -> Path:
        """Who runs this attempt: host and process, or the Slurm job."""
        return self.root / "submission.json"

    @property
    def outcome(self) -> Path:
        """Written last, by the one who saw all ranks end. Its absence means: not finished."""
        return self.root / "outcome.json"

    @property
    def lives(self) -> Path:
        """The lives of a job that is requeued, one JSON object a line, each written when it is over."""
        return self.root / "attempts.jsonl"

    def life(self, number: int) -> Path:
        """The ranks' records and the outcome of a life, put away when the next began."""
        return self.root / "lives" / f"life_{number}"

    @property
    def logs(self) -> Path:
        """submitit's folder: one log per rank."""
        return self.root / "logs"

    def log(self, job: str, *, rank: int) -> Path:
        """Everything that a rank of the job printed; rank 0's also has what the job's script and srun say."""
        return self.logs / f"{job}_{rank}_log.out"

    @property
    def progress(self) -> Path:
        """Rank 0's stages and steps, one JSON object a line."""
        return self.root / "progress.jsonl"

    @property
    def saves(self) -> Path:
        """Saved iterations of the training state."""
        return self.root / "checkpoints"

    @property
    def exported(self) -> Path:
        """Weights in Hugging Face format."""
        return self.root / "hf"

    @property
    def steps(self) -> Path:
        """What each optimizer step of a training job came to, one JSON object a line."""
        return self.root / "steps.jsonl"

    @property
    def stages(self) -> Path:
        """What the steps of the set-up took, in time and memory."""
        return self.root / "setup.json"

    @property
    def megatron(self) -> Path:
        """Megatron-Bridge's own configuration of the run, whole."""
        return self.root / "megatron.yaml"

    def rank(self, rank: int) -> Path:
        """The record of one rank: its process, its state, its error."""
        return self.root / "ranks" / f"rank_{rank}.json"

    @property
    def rendezvous(self) -> Path:
        """host:port of rank 0's store."""
        return self.root / "ranks" / "rendezvous"

    @property
    def report(self) -> Path:
        """The verdict as data."""
        return self.root / "report.json"

    @property
    def page(self) -> Path:
        """The verdict as a page."""
        return self.root / "report.html"


@dataclass(frozen=True)
class RunPaths:
    """The folder of one question, and its attempts at an answer."""

    root: Path

    def attempts(self) -> list[AttemptPaths]:
        """The attempts there are, oldest first (by number, not by spelling)."""
        if not self.root.is_dir():
            return []
        found = [AttemptPaths(p) for p in self.root.iterdir() if _ATTEMPT.fullmatch(p.name)]
        return sorted(found, key=lambda a: a.number)

    def new_attempt(self) -> AttemptPaths:
        """Make the next attempt's folder. Two launchers at once get two folders: mkdir decides."""
        number = max((a.number for a in self.attempts()), default=0) + 1
        while True:
            attempt = AttemptPaths(self.root / f"attempt_{number}")
            try:
                attempt.root.mkdir(parents=True)
            except FileExistsError:
                number += 1
                continue
            attempt.rank(0).parent.mkdir()
            return attempt


@dataclass(frozen=True)
class ArrayPaths:
    """The files of one Slurm array of a sweep: `outputs/sweeps/<hash8>/array_<n>/`."""

    root: Path

    @property
    def sweep(self) -> SweepPaths:
        """The sweep that it is of."""
        return SweepPaths(self.root.parent)

    @property
    def record(self) -> Path:
        """Which attempts it runs, and its job once sbatch has answered."""
        return self.root / "array.json"

    @property
    def logs(self) -> Path:
        """submitit's folder; the `logs` of each of its attempts is a link to it."""
        return self.root / "logs"


@dataclass(frozen=True)
class SweepPaths:
    """The folder of one sweep, named after its questions."""

    root: Path

    @property
    def lock(self) -> Path:
        """Held by the launcher that submits."""
        return self.root / "lock"

    @property
    def outputs(self) -> Outputs:
        """The folder that it is in."""
        return Outputs(self.root.parent.parent)

    @property
    def points(self) -> Path:
        """Every point with its words and what became of it, as of the last submission."""
        return self.root / "points.json"

    @property
    def page(self) -> Path:
        """How the points ended, as a page."""
        return self.root / "report.html"

    def new_array(self) -> ArrayPaths:
        """Make the folder of the next array; only the holder of the lock does."""
        paths = ArrayPaths(self.root / f"array_{len(list(self.root.glob('array_*'))) + 1}")
        paths.logs.mkdir(parents=True)
        return paths


@dataclass(frozen=True)
class Outputs:
    """The folder `output_dir`: runs, and caches that runs share."""

    root: Path

    def run(self, name: str, *, digest: str) -> RunPaths:
        """The folder of the run with this name and hash."""
        return RunPaths(self.root / f"{name}-{digest}")

    def runs(self) -> list[RunPaths]:
        """All runs, by the time of their folder, oldest first."""
        if not self.root.is_dir():
            return []
        runs = [RunPaths(p) for p in self.root.iterdir() if p.is_dir() and p.name != "cache"]
        return sorted((r for r in runs if r.attempts()), key=lambda r: r.root.stat().st_mtime)

    def sweep(self, digest: str) -> SweepPaths:
        """The folder of the sweep with this hash."""
        return SweepPaths(self.root / "sweeps" / digest)

    def arrays(self) -> list[ArrayPaths]:
        """The arrays of all sweeps that have a record."""
        return [ArrayPaths(path.parent) for path in sorted(self.root.glob("sweeps/*/array_*/array.json"))]

    def code(self, digest: str) -> Path:
        """A copy of the packages that queued runs import."""
        return self.root / "cache" / "code" / digest

    def random_model(self, digest: str) -> Path:
        """A Hugging Face folder made here from a configuration."""
        return self.root / "cache" / "hf" / digest

    def converted(self, name: str, *, digest: str) -> Path:
        """A Hugging Face checkpoint converted by Megatron-Bridge."""
        return self.root / "cache" / "megatron" / f"{name}-{digest}"

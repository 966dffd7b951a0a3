"""What the verb requeue refuses before it asks Slurm anything, and the attempt that it makes. Slurm: tests/slurm."""

from pathlib import Path

import pytest

from launcher.compose import compose
from launcher.errors import ConfigError, ExitCode
from launcher.files import write_json
from launcher.outcome import write_outcome
from launcher.paths import AttemptPaths, Outputs
from launcher.requeue import requeue
from launcher.resolved import dump_resolved, load_resolved
from launcher.schema.cluster import ClusterKind
from launcher.submission import write_submission
from launcher.submit import repeat_attempt


def ended(outputs: Path, *, kind: ClusterKind, state: str) -> AttemptPaths:
    paths = Outputs(outputs).run("run", digest="0123abcd").new_attempt()
    paths.resolved.write_text(dump_resolved(compose(["force=true"]).config))
    paths.overrides.write_text("force=true\n")
    write_json(paths.plan, data={"name": "run"})
    write_submission(paths, cluster=kind, job="17")
    write_outcome(paths, state=state, exit_code=ExitCode.EXPERIMENT)
    return paths


@pytest.mark.parametrize(
    ("kind", "state", "words"),
    [
        (ClusterKind.local, "failed", "ran on this machine, not on Slurm"),
        (ClusterKind.slurm, "finished", "has finished"),
    ],
)
def test_what_cannot_be_requeued(kind: ClusterKind, state: str, words: str, tmp_path: Path) -> None:
    ended(tmp_path, kind=kind, state=state)
    with pytest.raises(ConfigError, match=words):
        requeue(["latest", f"output_dir={tmp_path}"])
    assert len(Outputs(tmp_path).runs()[0].attempts()) == 1


def test_a_run_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="requeue needs a run"):
        requeue([f"output_dir={tmp_path}"])


def test_the_next_attempt_has_the_same_configuration(tmp_path: Path) -> None:
    first = ended(tmp_path, kind=ClusterKind.slurm, state="failed")
    second = repeat_attempt(first, config=load_resolved(first.resolved))
    assert second.number == 2
    for old, new in ((first.resolved, second.resolved), (first.overrides, second.overrides), (first.plan, second.plan)):
        assert new.read_text() == old.read_text()
    assert second.rank(0).parent.is_dir()
    assert not second.outcome.exists()

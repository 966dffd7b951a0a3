"""What the verb requeue refuses before it asks Slurm anything, and the attempt that it makes. Slurm: tests/slurm."""

import re
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

TYPED = "python -m launcher 'model.hf_config_overrides={num_hidden_layers: 4}'"


def ended(outputs: Path, *, kind: ClusterKind, state: str) -> AttemptPaths:
    paths = Outputs(outputs).run("run", digest="0123abcd").new_attempt()
    paths.resolved.write_text(dump_resolved(compose(["force=true"]).config))
    paths.overrides.write_text("force=true\nmodel.hf_config_overrides={num_hidden_layers: 4}\n")
    write_json(paths.plan, data={"name": "run"})
    write_submission(paths, cluster=kind, job="17")
    write_outcome(paths, state=state, exit_code=ExitCode.EXPERIMENT)
    return paths


@pytest.mark.parametrize(
    ("kind", "state", "words"),
    [
        (ClusterKind.local, "failed", f"ran on this machine, not on Slurm\nhint: {TYPED}"),
        (ClusterKind.slurm, "finished", f"has finished\nhint: {TYPED} force=true"),
    ],
)
def test_what_cannot_be_requeued(kind: ClusterKind, state: str, words: str, tmp_path: Path) -> None:
    ended(tmp_path, kind=kind, state=state)
    with pytest.raises(ConfigError, match=rf"{re.escape(words)}$"):
        requeue(["latest", f"output_dir={tmp_path}"])
    assert len(Outputs(tmp_path).runs()[0].attempts()) == 1


def test_of_several_each_is_said_and_none_left_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = ended(tmp_path, kind=ClusterKind.local, state="failed")
    second = Outputs(tmp_path).run("other", digest="0").new_attempt()
    second.overrides.write_text("job.seed=2\n")
    write_submission(second, cluster=ClusterKind.slurm, job="18")
    write_outcome(second, state="finished", exit_code=0)
    with pytest.raises(ConfigError, match="none of the 2 runs can be queued again"):
        requeue([str(first.root), "18", f"output_dir={tmp_path}"])
    assert capsys.readouterr().out == (
        f"left: {first.root} ran on this machine, not on Slurm\nleft: {second.root} has finished\n"
    )


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

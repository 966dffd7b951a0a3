"""Which saves a run may go on from: torch-free, by folders alone."""

from pathlib import Path

import pytest

from launcher.compose import compose
from launcher.jobs import saves_to_resume
from launcher.paths import AttemptPaths


@pytest.mark.parametrize(
    ("words", "folders"),
    [
        ([], ["attempt_1/checkpoints", "attempt_2/checkpoints"]),
        (["force=true"], ["attempt_2/checkpoints"]),
    ],
    ids=["this run's", "repeated"],
)
def test_of_a_second_attempt(words: list[str], folders: list[str], tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"attempt_{number}").mkdir()
    found = saves_to_resume(compose(words).config, paths=AttemptPaths(tmp_path / "attempt_2"))
    assert [str(path).removeprefix(f"{tmp_path}/") for path in found] == folders

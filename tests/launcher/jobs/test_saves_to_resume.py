"""Which saves a run may go on from, by what its attempts left."""

from pathlib import Path

import pytest

from launcher.compose import compose
from launcher.errors import ExitCode
from launcher.jobs import saves_to_resume
from launcher.outcome import write_outcome
from launcher.paths import AttemptPaths


@pytest.mark.parametrize(
    ("words", "states", "numbers"),
    [
        ([], [None, "failed"], [3, 2, 1]),
        ([], [None, "finished"], [3]),
        ([], ["finished", "failed"], [3, 2]),
        (["force=true"], [None, "failed"], [3]),
    ],
    ids=["of all attempts", "none after a finished one", "since the finished one", "none where it is repeated"],
)
def test_of_a_third_attempt(words: list[str], states: list[str | None], numbers: list[int], tmp_path: Path) -> None:
    attempts = [AttemptPaths(tmp_path / f"attempt_{number}") for number in (1, 2, 3)]
    for attempt, state in zip(attempts, [*states, None], strict=True):
        attempt.root.mkdir()
        if state is not None:
            write_outcome(attempt, state=state, exit_code=ExitCode.OK)
    found = saves_to_resume(compose(words).config, paths=attempts[2])
    assert found == tuple(attempts[number - 1].saves for number in numbers)


def test_of_an_attempt_that_requeues_a_forced_one(tmp_path: Path) -> None:
    """Its own configuration has force=false; the attempts before the forced one are another run's."""
    attempts = [AttemptPaths(tmp_path / f"attempt_{number}") for number in (1, 2, 3)]
    for attempt, force in zip(attempts, ["false", "true", "false"], strict=True):
        attempt.root.mkdir()
        attempt.resolved.write_text(f"force: {force}\n")
    found = saves_to_resume(compose([]).config, paths=attempts[2])
    assert found == (attempts[2].saves, attempts[1].saves)

"""What a program of Slurm that fails is told as: its own words, and whether the controller was not reached."""

import pytest

from launcher.errors import SubmissionError
from launcher.slurm import queue
from launcher.slurm.queue import UnreachableError, answer_of

FAILS = "echo '{words}' >&2; exit 1"


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("slurm_load_ctl_conf error: Unable to contact slurm controller (connect failure)", UnreachableError),
        ("scontrol: fatal: Could not establish a configuration source", UnreachableError),
        ("scontrol: error: Access denied", SubmissionError),
    ],
)
def test_its_own_words(words: str, kind: type[SubmissionError]) -> None:
    with pytest.raises(SubmissionError) as caught:
        answer_of("sh", "-c", FAILS.format(words=words))
    assert str(caught.value) == f"error: sh failed: {words}"
    assert type(caught.value) is kind


def test_one_that_tries_for_too_long_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "_TIMEOUT_S", 2)
    with pytest.raises(UnreachableError, match=r"sh did not answer within 2 s: retrying"):
        answer_of("sh", "-c", "echo retrying >&2; exec sleep 60")


def test_one_that_is_not_there() -> None:
    with pytest.raises(SubmissionError, match="there is no no-such-program here"):
        answer_of("no-such-program")

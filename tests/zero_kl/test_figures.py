import math

import pytest

from launcher.schema import PlatformKind
from tests.zero_kl.example_reports import ORDINARY, ZERO, report
from zero_kl import figures
from zero_kl.measure import compare


@pytest.mark.parametrize(
    ("part", "of", "text"),
    [(5, 5, "100"), (99_999, 100_000, "99.99"), (1, 3, "33.33"), (1, 100_000, "0.00"), (0, 7, "0.00"), (0, 0, "–")],
)
def test_only_all_is_100_percent(part: int, of: int, text: str) -> None:
    assert figures.percent(part, of=of) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (1.94e-2, "1.9e-2"),
        (-3e-11, "-3.0e-11"),
        (1.5, "1.5"),
        (math.nan, "NaN"),
        (-math.inf, "-inf"),
    ],
)
def test_only_zero_is_0(value: float, text: str) -> None:
    assert figures.scientific(value) == text


def test_verdict_sentences() -> None:
    assert figures.verdict_sentence(report(ZERO)) == "all 2,304 log-probabilities equal to the bit, over 3 measurements"
    exact = sum(m.n_exact for m in ORDINARY)
    assert figures.verdict_sentence(report(ORDINARY)).startswith(f"{exact} of 2,304 log-probabilities equal")
    assert figures.verdict_sentence(report([])) == "nothing was measured"
    assert figures.verdict_sentence(report([ZERO[0], compare([], step=1)])).endswith("; nothing was measured at step 1")


def test_every_platform_says_what_it_proves_and_what_not() -> None:
    assert set(figures.CLAIMS) == set(PlatformKind)
    assert all("Says nothing about" in claim for claim in figures.CLAIMS.values())
    assert "GPU kernels" in figures.CLAIMS[PlatformKind.cpu]

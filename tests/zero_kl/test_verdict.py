import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from launcher.errors import ConfigError
from launcher.files import write_json
from tests.zero_kl.example_reports import ORDINARY, ZERO, report, responses
from zero_kl.measure import compare
from zero_kl.verdict import Measurement, Report, Verdict, read_report, report_data, total


def strict_json(text: str) -> Any:
    def refuse(word: str) -> None:
        raise ValueError(word)

    return json.loads(text, parse_constant=refuse)


def with_nan() -> Measurement:
    given = responses(0)
    given[3].training[5] = math.nan
    return compare(given, step=0)


def test_total_is_what_one_comparison_over_all_tokens_gives() -> None:
    parts = [responses(0, noise=1e-2, exact=0.3), responses(1, num=5, length=7, noise=1e-3)]
    pooled = total([compare(p, step=i) for i, p in enumerate(parts)])
    at_once = compare(parts[0] + [dataclasses.replace(r, request=100 + r.request) for r in parts[1]], step=0)
    assert (pooled.n, pooled.n_exact, pooled.max_abs_diff) == (at_once.n, at_once.n_exact, at_once.max_abs_diff)
    assert pooled.first_mismatch == at_once.first_mismatch
    for name in ("mean_abs_diff", "k1", "k2", "k3"):
        assert getattr(pooled, name) == pytest.approx(getattr(at_once, name), rel=1e-12)


def test_total_does_not_lose_a_nan() -> None:
    for order in ([with_nan(), ORDINARY[1]], [ORDINARY[1], with_nan()]):
        assert math.isnan(total(order).max_abs_diff)


@pytest.mark.parametrize(
    ("measurements", "verdict"),
    [
        (ZERO, Verdict.ZERO),
        (ORDINARY, Verdict.NOT_ZERO),
        ([*ZERO[:2], ORDINARY[2]], Verdict.NOT_ZERO),
        ([], Verdict.NOT_ZERO),
        ([*ZERO[:2], compare([], step=2)], Verdict.NOT_ZERO),
        ([with_nan()], Verdict.NOT_ZERO),
    ],
)
def test_verdict(measurements: list[Measurement], verdict: Verdict) -> None:
    assert report(measurements).verdict == verdict


def test_equal_nans_are_not_zero() -> None:
    given = responses(0)
    given[0].generation[0] = given[0].training[0] = math.nan
    measured = compare(given, step=0)
    assert measured.n_exact == measured.n and not measured.is_zero


@pytest.mark.parametrize(
    "made", [report(ZERO, required=True), report(ORDINARY), report([])], ids=["zero", "not", "empty"]
)
def test_round_trip(made: Report, tmp_path: Path) -> None:
    write_json(tmp_path / "report.json", data=report_data(made))
    back = read_report(tmp_path / "report.json")
    if made.measurements:  # the total of nothing is NaN, which equals nothing
        assert back.total == made.total
    assert back == made
    assert all(m.deltas is None for m in back.measurements)


def test_json_is_strict_and_says_the_verdict_first() -> None:
    text = json.dumps(report_data(report([with_nan()])))
    data = strict_json(text)
    assert list(data)[:2] == ["verdict", "total"]
    assert data["measurements"][0]["k3"] == "nan"
    assert data["measurements"][0]["first_mismatch"]["training"] == "nan"


def test_a_nan_comes_back(tmp_path: Path) -> None:
    write_json(tmp_path / "report.json", data=report_data(report([with_nan()])))
    measured = read_report(tmp_path / "report.json").measurements[0]
    assert math.isnan(measured.k3) and measured.num_nan == 1


def test_a_verdict_that_was_edited_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write_json(path, data=report_data(report(ORDINARY)) | {"verdict": "ZERO"})
    with pytest.raises(ConfigError, match="says ZERO, but its measurements say NOT ZERO"):
        read_report(path)


@pytest.mark.parametrize("text", ["", '{"verdict": "ZERO"', "[]", '{"verdict": "ZERO", "total": {}}'])
def test_what_is_not_a_report_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"report\.json is not a report"):
        read_report(path)


def test_throughput_over_all_steps() -> None:
    pooled = report(ZERO).total_throughput
    assert (pooled.generation_tokens_per_s, pooled.training_tokens_per_s) == (2304 / 6, 4608 / 0.75)


def test_command_can_be_pasted_and_repeats() -> None:
    made = dataclasses.replace(report(ZERO), overrides=("+preset=zero_kl_cpu", "force=true", "a={b: 1}"))
    assert made.command == "python -m launcher +preset=zero_kl_cpu 'a={b: 1}' force=true"


def test_steps_measured_and_timed_agree() -> None:
    with pytest.raises(AssertionError, match=r"measured steps \[0, 1\], but timed steps \[0, 1, 2\]"):
        dataclasses.replace(report(ZERO), measurements=tuple(ZERO[:2]))


def test_float32_values_survive_json(tmp_path: Path) -> None:
    value = float(torch.tensor(-1.1))
    made = report(ORDINARY)
    first = dataclasses.replace(made.measurements[0].first_mismatch, generation=value)  # type: ignore[type-var]
    changed = dataclasses.replace(made.measurements[0], first_mismatch=first)
    write_json(tmp_path / "r.json", data=report_data(dataclasses.replace(made, measurements=(changed, *ORDINARY[1:]))))
    back = read_report(tmp_path / "r.json").measurements[0].first_mismatch
    assert back is not None and back.generation == value

"""The verdict as data: what was measured, under which circumstances, and `report.json`.

Owns the definition of ZERO, the figures' names and their JSON. Imports neither torch nor numpy: the launcher prints
reports on machines that have neither. Measuring is `zero_kl.measure`, the page is `zero_kl.report`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from pathlib import Path
from typing import Any, cast

from launcher.errors import ConfigError
from launcher.schema import Backend, PlatformKind
from zero_kl.evidence import Claim, Search, search_from


class Verdict(StrEnum):
    """ZERO: every log-probability of every measurement is equal to the bit, and there was at least one in each."""

    ZERO = "ZERO"
    NOT_ZERO = "NOT ZERO"


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """The first token of a measurement whose two log-probabilities differ, in the order of the responses."""

    step: int
    request: int
    position: int
    """In the response, from 0."""

    absolute_position: int
    """In the sequence (prompt and response), from 0."""

    token: int
    """Token id."""

    sequence_length_mod_64: int
    """Length of prompt and response, modulo 64: scoring pads rows to multiples of 64, and tails are where it shows."""

    generation: float
    training: float
    """The two raw log-probabilities, fp32 values."""


@dataclass(frozen=True, kw_only=True)
class Deltas:
    """What the plot needs of a measurement: training - generation, token by token."""

    exact: tuple[int, ...]
    """Number of bitwise equal tokens at response position 0, 1, ..."""

    positions: tuple[int, ...]
    """Response position of each token that differs."""

    values: tuple[float, ...]
    """Delta of each token that differs; NaN where a side is NaN, 0 where only the sign of a zero differs."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The comparison of one step, or the total over steps. Figures are NaN where n is 0 or a NaN differs."""

    step: int | None
    """Optimizer steps taken before. None: the total."""

    n: int
    n_exact: int
    num_nan: int
    """Tokens with NaN on either side. Equal NaN bits count in n_exact, yet no measurement with a NaN is zero."""

    max_abs_diff: float
    mean_abs_diff: float
    k1: float
    k2: float
    k3: float
    """Estimates of KL(generation || training) in nats per token; `zero_kl.measure` defines them."""

    first_mismatch: Mismatch | None
    deltas: Deltas | None = field(default=None, compare=False, repr=False)
    """For the page only: not in report.json, so None in a total and in a report that was read back."""

    @property
    def is_zero(self) -> bool:
        """Every token equal as integers, at least one token, no NaN."""
        return self.n > 0 and self.n_exact == self.n and self.num_nan == 0


def total(measurements: Sequence[Measurement]) -> Measurement:
    """All steps pooled: counts add up, means are weighted by n, the first mismatch is the earliest step's."""
    n = sum(m.n for m in measurements)

    def mean(name: str) -> float:
        return sum(m.n * getattr(m, name) for m in measurements) / n if n else math.nan

    largest = [m.max_abs_diff for m in measurements]
    return Measurement(
        step=None,
        n=n,
        n_exact=sum(m.n_exact for m in measurements),
        num_nan=sum(m.num_nan for m in measurements),
        # max() keeps or drops a NaN depending on the order.
        max_abs_diff=math.nan if not n or any(map(math.isnan, largest)) else max(largest),
        mean_abs_diff=mean("mean_abs_diff"),
        k1=mean("k1"),
        k2=mean("k2"),
        k3=mean("k3"),
        first_mismatch=next((m.first_mismatch for m in measurements if m.first_mismatch), None),
    )


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """Tokens and seconds of both sides of one measurement, so that steps can be pooled."""

    step: int | None
    generation_tokens: int
    """Tokens sampled."""

    generation_s: float
    training_tokens: int
    """Tokens, prompt and response, through the training forward that scores."""

    training_s: float

    update_tokens: int = 0
    """Tokens, prompt and response, through the optimizer step that follows (forward, backward, update); 0: none did."""

    update_s: float = 0.0

    @property
    def generation_tokens_per_s(self) -> float:
        """NaN where nothing was timed."""
        return self.generation_tokens / self.generation_s if self.generation_s else math.nan

    @property
    def training_tokens_per_s(self) -> float:
        """NaN where nothing was timed."""
        return self.training_tokens / self.training_s if self.training_s else math.nan

    @property
    def update_tokens_per_s(self) -> float:
        """NaN where no step followed."""
        return self.update_tokens / self.update_s if self.update_s else math.nan


@dataclass(frozen=True, kw_only=True)
class Report:
    """One finished experiment. The verdict is not stored here: it follows from the measurements."""

    required: bool
    """zero_kl.required: whether the run fails (exit 5) when it is not zero."""

    platform: PlatformKind
    mode: Backend
    """zero_kl.backend: whose kernels were to make it zero."""

    model: str
    num_parameters: int
    """Of the whole model, over all ranks."""

    layout: str
    """Parallel sizes as people write them: "TP 1, PP 1, EP 1, DP 2"."""

    measurements: tuple[Measurement, ...]
    throughput: tuple[Throughput, ...]
    """One per measurement, same steps."""

    stages_s: Mapping[str, float]
    """Seconds of each stage, in the order they ran."""

    config_yaml: str
    """The resolved configuration, as in resolved.yaml."""

    overrides: tuple[str, ...]
    """As typed."""

    versions: Mapping[str, str]
    git: Mapping[str, str]
    run_folder: str
    started: str
    finished: str
    """ISO 8601 times with their offset."""

    search: Search | None = None
    """None where every measurement is zero."""

    claims: tuple[Claim, ...] = ()
    """With job.claims; they hold the verdict up, and are no part of it."""

    def __post_init__(self) -> None:
        steps, timed = [m.step for m in self.measurements], [t.step for t in self.throughput]
        assert steps == timed, f"measured steps {steps}, but timed steps {timed}"

    @property
    def is_zero(self) -> bool:
        """At least one measurement, and each of them zero."""
        return bool(self.measurements) and all(m.is_zero for m in self.measurements)

    @property
    def verdict(self) -> Verdict:
        """The word for it."""
        return Verdict.ZERO if self.is_zero else Verdict.NOT_ZERO

    @property
    def total(self) -> Measurement:
        """The figures over all steps."""
        return total(self.measurements)

    @property
    def total_throughput(self) -> Throughput:
        """Tokens and seconds over all steps."""
        return Throughput(
            step=None,
            generation_tokens=sum(t.generation_tokens for t in self.throughput),
            generation_s=sum(t.generation_s for t in self.throughput),
            training_tokens=sum(t.training_tokens for t in self.throughput),
            training_s=sum(t.training_s for t in self.throughput),
            update_tokens=sum(t.update_tokens for t in self.throughput),
            update_s=sum(t.update_s for t in self.throughput),
        )

    @property
    def command(self) -> str:
        """What to type to run it again; an identical run that has finished is only repeated with force=true."""
        return shlex.join(["python", "-m", "launcher", *(o for o in self.overrides if o != "force=true"), "force=true"])


def report_data(report: Report) -> dict[str, Any]:
    """The report as strict JSON: derived figures first, deltas left out, NaN and infinities as "nan", "inf", "-inf"."""
    data: dict[str, Any] = {
        "verdict": report.verdict,
        "total": dataclasses.asdict(report.total),
        **dataclasses.asdict(report),
    }
    for measurement in (data["total"], *data["measurements"]):
        del measurement["deltas"]
    return _plain(data)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in cast(Mapping[str, Any], value).items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast(Sequence[Any], value)]
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def read_report(path: Path) -> Report:
    """The report in a `report.json`; ConfigError where the file is no whole report or its verdict was edited."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        stated = data.pop("verdict")
        del data["total"]
        report = _report_from(data)
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"error: {path} is not a report: {type(error).__name__}: {error}") from error
    if stated != report.verdict:
        raise ConfigError(f"error: {path} says {stated}, but its measurements say {report.verdict}")
    return report


def _report_from(data: Mapping[str, Any]) -> Report:
    typed: dict[str, Any] = {
        "platform": PlatformKind(data["platform"]),
        "mode": Backend(data["mode"]),
        "measurements": tuple(_measurement_from(m) for m in data["measurements"]),
        "throughput": tuple(Throughput(**t) for t in data["throughput"]),
        "overrides": tuple(data["overrides"]),
        "search": None if data["search"] is None else search_from(data["search"]),
        "claims": tuple(Claim(**c) for c in data["claims"]),
    }
    return Report(**{**data, **typed})


def _measurement_from(data: Mapping[str, Any]) -> Measurement:
    first = data["first_mismatch"]
    typed: dict[str, Any] = {
        **{name: float(data[name]) for name in ("max_abs_diff", "mean_abs_diff", "k1", "k2", "k3")},
        "first_mismatch": None if first is None else _mismatch_from(first),
    }
    return Measurement(**{**data, **typed})


def _mismatch_from(data: Mapping[str, Any]) -> Mismatch:
    typed: dict[str, Any] = {name: float(data[name]) for name in ("generation", "training")}
    return Mismatch(**{**data, **typed})

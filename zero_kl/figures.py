"""How figures and sentences of a report are written, the same in the terminal and on the page.

Owns words and number formats. Imports no torch and no rendering library.
"""

import math
from collections.abc import Sequence
from datetime import datetime

from launcher.schema import PlatformKind
from zero_kl.evidence import Claim, Search
from zero_kl.verdict import Report

_KERNELS = (
    "Tests generation's kernels against training's on this kind of GPU, for this model, this layout, these versions "
    "and the tokens counted here. Says nothing about other models, layouts, GPUs or versions."
)
CLAIMS = {
    PlatformKind.cpu: "Tests the pipeline, the rule tables, the token accounting and the parallel layout, with real "
    "Megatron-Core and Megatron-Bridge. Says nothing about GPU kernels, NCCL, memory or speed.",
    PlatformKind.hopper: _KERNELS,
    PlatformKind.blackwell: _KERNELS,
}
"""What a verdict on each platform proves, and what it does not."""


def count(number: int) -> str:
    """12,345"""
    return f"{number:,}"


def percent(part: int, *, of: int) -> str:
    """17.85, rounded down: 100 means every one. A dash for a share of nothing."""
    if not of:
        return "–"
    hundredths = part * 10_000 // of
    return "100" if hundredths == 10_000 else f"{hundredths // 100}.{hundredths % 100:02}"


def scientific(value: float) -> str:
    """1.9e-2; 0 only for an exact zero."""
    if value == 0 or not math.isfinite(value):
        return {0.0: "0", math.inf: "inf", -math.inf: "-inf"}.get(value, "NaN")
    mantissa, exponent = f"{value:.1e}".split("e")
    return mantissa if int(exponent) == 0 else f"{mantissa}e{int(exponent)}"


def rate(value: float) -> str:
    """17,917 of something a second; a dash where nothing was timed."""
    return "–" if math.isnan(value) else f"{value:,.0f}"


def seconds(value: float) -> str:
    """1.3 s"""
    return f"{value:,.1f} s"


def fp32(value: float) -> str:
    """Nine significant digits: enough to tell any two fp32 values apart."""
    return f"{value:.9g}"


def moment(iso: str) -> str:
    """2026-07-01 10:00+00:00"""
    return datetime.fromisoformat(iso).isoformat(" ", "minutes")


def elapsed(report: Report) -> str:
    """From start to finish."""
    return seconds((datetime.fromisoformat(report.finished) - datetime.fromisoformat(report.started)).total_seconds())


def verdict_sentence(report: Report) -> str:
    """What follows the word ZERO or NOT ZERO, on one line."""
    whole = report.total
    if not whole.n:
        return "nothing was measured"
    over = f"over {len(report.measurements)} measurement{'s' if len(report.measurements) > 1 else ''}"
    if report.is_zero:
        return f"all {count(whole.n)} log-probabilities equal to the bit, {over}"
    text = f"{count(whole.n_exact)} of {count(whole.n)} log-probabilities equal to the bit, {over}"
    empty = [str(m.step) for m in report.measurements if not m.n]
    text += f"; {count(whole.num_nan)} NaN" if whole.num_nan else ""
    return text + (f"; nothing was measured at step {', '.join(empty)}" if empty else "")


def requirement_sentence(report: Report) -> str:
    """Whether zero was asked for."""
    return "Zero was required." if report.required else "Zero was not required: the mismatch is measured and reported."


def search_sentence(search: Search) -> str:
    """Where a verdict that is not zero first fails, or why that is not known."""
    found = search.found
    if found is None:
        return f"First difference: {search.says}."
    more = ", …" if found.num_differing > len(found.positions) else ""
    rows = ", ".join(map(str, found.positions)) + more
    return (
        f"First difference: {found.point}, rows {rows} ({count(found.num_differing)} of {count(found.num_compared)}), "
        f"max |Δ| {scientific(found.max_abs_diff)}."
    )


def case_sentence(search: Search) -> str:
    """The smallest case that shows it; empty where none was found."""
    found = search.found
    if found is None:
        return ""
    others = found.num_requests - 1
    company = "alone" if not others else f"with {others} other{'s' if others > 1 else ''}"
    sampled = f", {count(found.new_tokens)} sampled" if found.new_tokens else ""
    return (
        f"Smallest failing case: the training forward against {found.against}, after {search.step} optimizer steps, "
        f"request {found.request} {company}, {count(found.prompt_tokens)} tokens given{sampled}. "
        "Rows are positions in its sequence; everything computed before this point is equal to the bit."
    )


def claims_sentence(claims: Sequence[Claim]) -> str:
    """How many of the sweeps hold."""
    held = sum(c.holds for c in claims)
    return f"{held} of {len(claims)} sweeps hold" if claims else "not checked (job.claims=true checks them)"

"""Which packages, in which versions: rows, and the check of what is installed. Imports none of the packages.

Distributions are asked for by name in their metadata, so a broken import does not hide a wrong version.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from launcher.requirement import ALWAYS, Condition, Subject
from launcher.schema import RunConfig
from zero_kl.conditions import GPU, MEASURED, RECIPE
from zero_kl.findings import Findings

FLASH_4 = GPU & Condition(
    who="FlashAttention-4",
    text="performance.flash_attention_version is 4",
    test=lambda s: s.config.performance.flash_attention_version == 4,
)


@dataclass(frozen=True, kw_only=True)
class PackageRequirement:
    """One package. Of `distributions` the first that is installed counts; outside `measured` is a warning."""

    code: str
    distributions: tuple[str, ...]
    wanted: SpecifierSet
    """What is allowed; empty: every version. Pre-releases count by their own order."""

    measured: str
    why: str
    source: str
    extra: str
    """The extra of this project that installs it."""

    when: Condition = ALWAYS


@dataclass(frozen=True, kw_only=True)
class PairRequirement:
    """Two packages, each by its first distribution name, that are wrong together inside both ranges."""

    code: str
    first: str
    first_range: SpecifierSet
    second: str
    second_range: SpecifierSet
    why: str
    source: str
    todo: str
    when: Condition = ALWAYS


PACKAGES: tuple[PackageRequirement, ...] = (
    PackageRequirement(
        code="ZG001",
        distributions=("torch",),
        wanted=SpecifierSet(),
        measured="2.11.0",
        why="everything runs on it",
        source=MEASURED,
        extra="megatron",
    ),
    PackageRequirement(
        code="ZG002",
        distributions=("triton",),
        wanted=SpecifierSet("<3.9"),
        measured="3.6.0",
        why="flash-linear-attention 0.4.2, which megatron-bridge imports, fails in triton 3.9's autotuner",
        source="seen with torch 2.15 and triton 3.9: the import of megatron-bridge 0.6.2 failed",
        extra="megatron",
    ),
    PackageRequirement(
        code="ZG003",
        distributions=("megatron-core",),
        wanted=SpecifierSet(">=0.19"),
        measured="0.19.2",
        why="its attention runs FlashAttention-4 and takes flash_attention_version since then",
        source="megatron-core 0.19.2 transformer/attention.py",
        extra="megatron",
    ),
    PackageRequirement(
        code="ZG004",
        distributions=("megatron-bridge",),
        wanted=SpecifierSet(),
        measured="0.6.2",
        why="it converts the checkpoint and builds the model",
        source=MEASURED,
        extra="megatron",
    ),
    PackageRequirement(
        code="ZG005",
        distributions=("transformers",),
        wanted=SpecifierSet(">=5.8,<=5.12.1"),
        measured="5.12.1",
        why="megatron-bridge reads configurations and weights through it",
        source="megatron-bridge 0.6.2 metadata, Requires-Dist",
        extra="megatron",
    ),
    PackageRequirement(
        code="ZG006",
        distributions=("transformer-engine", "transformer-engine-torch"),
        wanted=SpecifierSet(">=2.18"),
        measured="2.20.2",
        why="older ones cannot be held to one version of FlashAttention (NVTE_FLASH_ATTN_V2, _V3, _V4)",
        source=RECIPE,
        extra="gpu",
        when=GPU,
    ),
    PackageRequirement(
        code="ZG007",
        distributions=("flash-attn-4",),
        wanted=SpecifierSet(">=4.0.0b19"),
        measured="4.0.0b29",
        why="both sides' attention; megatron-core asks for b20, and b19's call is the same (zero_kl/kernels/flash.py)",
        source="megatron-core 0.19.2 transformer/attention.py, HAVE_FA4",
        extra="gpu",
        when=FLASH_4,
    ),
    PackageRequirement(
        code="ZG008",
        distributions=("nvidia-cutlass-dsl", "nvidia-cutlass-dsl-libs-base"),
        wanted=SpecifierSet(">=4.5.2"),
        measured="4.8.1",
        why="it compiles FlashAttention-4's kernels (CuTe DSL)",
        source=f"{RECIPE}; flash-attn-4 4.0.0b29 itself asks for 4.6.2",
        extra="gpu",
        when=FLASH_4,
    ),
)

PAIRS: tuple[PairRequirement, ...] = (
    PairRequirement(
        code="ZG020",
        first="flash-attn-4",
        first_range=SpecifierSet(">=4.0.0b30"),
        second="transformer-engine",
        second_range=SpecifierSet("<=2.20.2"),
        why="Transformer Engine passes causal attention as window (-1, 0); from b30 on that is an empty local "
        "window, and training's attention is silently wrong while generation's is right (k3 about 0.4)",
        source="flash-attn-4 4.0.0b29 and 4.0.0b30 cute/interface.py, _resolve_causal_local_window; seen on one "
        "H200 (b36)",
        todo="uv pip install flash-attn-4==4.0.0b29",
        when=FLASH_4,
    ),
)


def installed_packages() -> dict[str, str | None]:
    """Version by distribution name, for every name in the rows; None where it is not installed here."""
    return {name: _installed(name) for row in PACKAGES for name in row.distributions}


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_packages(config: RunConfig, *, installed: Mapping[str, str | None]) -> Findings:
    """One line per package that is missing or refused, and one warning per version outside what was measured."""
    subject = Subject(config=config, architecture=None)
    rows = [row for row in PACKAGES if row.when.test(subject)]
    found = {row.distributions[0]: _first(row, installed=installed) for row in rows}
    single = [_refusal(row, found=found[row.distributions[0]]) for row in rows]
    pairs = [_pair_refusal(pair, found=found) for pair in PAIRS if pair.when.test(subject)]
    warnings = [_warning(row, found=found[row.distributions[0]]) for row in rows]
    return Findings(
        violations=tuple(line for line in (*single, *pairs) if line is not None),
        warnings=tuple(line for line in warnings if line is not None),
    )


def _first(row: PackageRequirement, *, installed: Mapping[str, str | None]) -> str | None:
    return next((found for name in row.distributions if (found := installed[name]) is not None), None)


def _refusal(row: PackageRequirement, *, found: str | None) -> str | None:
    if found is not None and _within(row.wanted, version=found):
        return None
    name, wanted = row.distributions[0], f"version {row.wanted}" if row.wanted else "it"
    state = "not installed" if found is None else found
    return f"{name} is {state}, the run needs {wanted}: {row.why} [{row.code}]; uv sync --extra {row.extra}"


def _warning(row: PackageRequirement, *, found: str | None) -> str | None:
    if found is None or Version(found).public == Version(row.measured).public:
        return None
    return f"{row.distributions[0]} is {found}, measured was {row.measured} [{row.code}]"


def _pair_refusal(pair: PairRequirement, *, found: Mapping[str, str | None]) -> str | None:
    first, second = found[pair.first], found[pair.second]
    if first is None or second is None:
        return None
    if not (_within(pair.first_range, version=first) and _within(pair.second_range, version=second)):
        return None
    return f"{pair.first} is {first} with {pair.second} {second}: {pair.why} [{pair.code}]; {pair.todo}"


def _within(wanted: SpecifierSet, *, version: str) -> bool:
    return wanted.contains(Version(version), prereleases=True)

"""What the node must be: GPUs, driver, and what the installed megatron-core can do. Rows, and their checks.

`count_gpus` and `read_driver` look at files and import nothing, for the launcher; `check_node` is the worker's and
imports torch and megatron-core. Versions are in zero_kl.versions, architectures in zero_kl.architectures.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from launcher.schema import PlatformKind, RunConfig
from zero_kl.conditions import MEASURED, RECIPE
from zero_kl.findings import Findings
from zero_kl.versions import check_packages, installed_packages

Capability = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class DeviceRequirement:
    """Every visible GPU has at least capability `low` and less than `below`."""

    code: str
    platform: PlatformKind
    low: Capability
    below: Capability
    why: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Feature:
    """A field of megatron-core's TransformerConfig. Without `stand_in` a version that lacks it is refused."""

    code: str
    field: str
    stand_in: str | None
    why: str
    source: str


DEVICES: tuple[DeviceRequirement, ...] = (
    DeviceRequirement(
        code="ZG030",
        platform=PlatformKind.hopper,
        low=(9, 0),
        below=(10, 0),
        why="the figures of this platform are an H200's",
        source=MEASURED,
    ),
    DeviceRequirement(
        code="ZG031",
        platform=PlatformKind.blackwell,
        low=(10, 0),
        below=(12, 0),
        why="the recipe is for sm_100 and newer; FlashAttention-4 has no paged keys and values on sm_120",
        source=f"{RECIPE}; flash-attn-4 4.0.0b29 cute/interface.py asserts page_table is None on sm_120",
    ),
)

MIN_DRIVER = 580
"""Oldest driver branch of CUDA 13.0, which torch 2.11.0+cu130 is built with (CUDA 13.0 release notes)."""

_AFTER = "in megatron-core after 0.19.2; absent from 0.19.2 transformer/transformer_config.py"
_SINCE = "megatron-core 0.19.2 transformer/transformer_config.py"

FEATURES: tuple[Feature, ...] = (
    Feature(
        code="ZG040",
        field="batch_invariant_mode",
        stand_in=None,
        why="attention takes num_splits=1 from it, in training and in generation",
        source=_SINCE,
    ),
    Feature(
        code="ZG041",
        field="flash_attention_version",
        stand_in=None,
        why="training and generation are held to one FlashAttention by it",
        source=_SINCE,
    ),
    Feature(
        code="ZG042",
        field="batch_invariant_backend",
        stand_in="zero_kl.kernels switches the backend (zero_kl.backend) by patches tested with 0.19.2",
        why="it chooses whose GEMMs are batch-invariant",
        source=_AFTER,
    ),
    Feature(
        code="ZG043",
        field="batch_invariant_collective",
        stand_in="zero_kl/kernels/reduction.py, switched by zero_kl.batch_invariant_collective (ZK094)",
        why="it fixes the order in which ranks' partial sums are added",
        source=_AFTER,
    ),
)


def count_gpus(dev: Path = Path("/dev")) -> int:
    """NVIDIA GPUs of this machine, by their device files; CUDA_VISIBLE_DEVICES is not looked at."""
    return sum(re.fullmatch(r"nvidia\d+", path.name) is not None for path in dev.iterdir())


def read_driver(path: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """Version of the NVIDIA kernel driver, as "580.159.03"; None where its file is absent or says nothing."""
    if not path.exists():
        return None
    found = re.search(r"Kernel Module\s.*?(\d+\.\d+(?:\.\d+)?)", path.read_text())
    return found.group(1) if found else None


def check_driver(version: str | None) -> Findings:
    """A warning for a driver older than CUDA 13's branch: forward-compatibility packages may still make it work."""
    if version is None or int(version.partition(".")[0]) >= MIN_DRIVER:
        return Findings()
    return Findings(
        warnings=(f"the NVIDIA driver is {version}, CUDA 13.0 wants {MIN_DRIVER} or its compatibility package",)
    )


def check_capabilities(platform: PlatformKind, *, found: Sequence[Capability]) -> Findings:
    """Refuse a machine without GPUs, and every GPU outside the platform's range; `found` is one entry per GPU."""
    (row,) = [row for row in DEVICES if row.platform is platform]
    wanted = sm_range(row)
    if not found:
        return Findings(violations=(f"no GPU is visible, platform={platform.value} needs {wanted} [{row.code}]",))
    return Findings(
        violations=tuple(
            f"GPU {index} is {_sm(capability)}, platform={platform.value} needs {wanted}: {row.why} [{row.code}]"
            for index, capability in enumerate(found)
            if not row.low <= capability < row.below
        )
    )


def sm_range(row: DeviceRequirement) -> str:
    """The wish in words."""
    return f"{_sm(row.low)} up to below {_sm(row.below)}"


def _sm(capability: Capability) -> str:
    return f"sm_{capability[0]}{capability[1]}"


def check_device(platform: PlatformKind) -> Findings:
    """The GPUs that torch sees in this process."""
    import torch

    found = [torch.cuda.get_device_capability(index) for index in range(torch.cuda.device_count())]
    return check_capabilities(platform, found=found)


def check_features(present: Collection[str]) -> Findings:
    """Against the fields that a TransformerConfig has: a missing one is refused, or named with what stands in."""
    missing = [row for row in FEATURES if row.field not in present]
    return Findings(
        violations=tuple(
            f"megatron-core's TransformerConfig has no {row.field}, and nothing stands in for it: {row.why} "
            f"[{row.code}]"
            for row in missing
            if row.stand_in is None
        ),
        warnings=tuple(
            f"megatron-core's TransformerConfig has no {row.field}: {row.why}; {row.stand_in} [{row.code}]"
            for row in missing
            if row.stand_in is not None
        ),
    )


def megatron_features() -> Findings:
    """`check_features` of the installed megatron-core."""
    from megatron.core.transformer.transformer_config import TransformerConfig

    return check_features({field.name for field in fields(TransformerConfig)})


def check_node(config: RunConfig) -> Findings:
    """All that a worker checks before it builds anything: packages, and on a GPU platform driver, devices, features."""
    packages = check_packages(config, installed=installed_packages())
    kind = config.platform.kind
    if kind is PlatformKind.cpu or packages.violations:
        return packages
    return packages + check_driver(read_driver()) + check_device(kind) + megatron_features()

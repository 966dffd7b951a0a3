"""Gates on the node: packages and pairs, devices, driver, megatron-core's fields. Real metadata, no megatron import."""

import importlib.metadata
from pathlib import Path

import pytest

from launcher.compose import compose
from launcher.errors import NodeError
from launcher.schema import PlatformKind
from tests.plugin_golden import Golden
from zero_kl.findings import Findings
from zero_kl.gates import (
    FEATURES,
    check_capabilities,
    check_driver,
    check_features,
    check_node,
    count_gpus,
    read_driver,
)
from zero_kl.versions import PACKAGES, PAIRS, PackageRequirement, check_packages, installed_packages

MEASURED = {name: row.measured for row in PACKAGES for name in row.distributions}
BLACKWELL = compose(["+preset=zero_kl"]).config
CPU = compose(["+preset=zero_kl_cpu"]).config


def refused(**versions: str | None) -> list[str]:
    """Codes of the packages refused for blackwell when these differ from the measured set (`_` for `-`)."""
    installed = MEASURED | {name.replace("_", "-"): version for name, version in versions.items()}
    lines = check_packages(BLACKWELL, installed=installed).violations
    return [line.rpartition("[")[2][:5] for line in lines]


def test_codes_are_used_once() -> None:
    codes = [row.code for table in (PACKAGES, PAIRS, FEATURES) for row in table]
    assert len(codes) == len(set(codes))


def test_the_measured_set_is_fine() -> None:
    assert check_packages(BLACKWELL, installed=MEASURED) == Findings()


@pytest.mark.parametrize("row", PACKAGES, ids=lambda row: row.code)
def test_a_missing_package_is_named(row: PackageRequirement, golden: Golden) -> None:
    installed = MEASURED | dict.fromkeys(row.distributions)
    (line,) = check_packages(BLACKWELL, installed=installed).violations
    golden(line, name=f"zero_kl/{row.code}.txt")


@pytest.mark.parametrize(
    ("version", "codes"),
    [
        ("4.0.0b18", ["ZG007"]),
        ("4.0.0b19", []),
        ("4.0.0b20", []),
        ("4.0.0b29", []),
        ("4.0.0b30", ["ZG020"]),
        ("4.0.0b36", ["ZG020"]),
        ("4.0.0", ["ZG020"]),
    ],
)
def test_pre_releases_of_flash_attention_are_ordered(version: str, codes: list[str]) -> None:
    assert refused(flash_attn_4=version) == codes


@pytest.mark.parametrize(
    ("version", "codes"),
    [("2.17.1", ["ZG006"]), ("2.18.0.dev0", ["ZG006"]), ("2.18.0", []), ("2.20.2+cu130", []), ("2.21.0", [])],
)
def test_versions_of_transformer_engine(version: str, codes: list[str]) -> None:
    assert refused(transformer_engine=version) == codes


def test_the_pair_is_refused_for_its_reason(golden: Golden) -> None:
    installed = MEASURED | {"flash-attn-4": "4.0.0b36"}
    (line,) = check_packages(BLACKWELL, installed=installed).violations
    golden(line, name="zero_kl/ZG020.txt")


def test_the_pair_is_fine_once_transformer_engine_is_newer() -> None:
    assert refused(flash_attn_4="4.0.0b36", transformer_engine="2.21.0") == []


def test_the_first_of_several_names_counts() -> None:
    assert refused(transformer_engine=None) == []
    assert refused(transformer_engine=None, transformer_engine_torch="2.17.0") == ["ZG006"]
    assert refused(transformer_engine="2.20.2", transformer_engine_torch="2.17.0") == []
    assert refused(transformer_engine=None, flash_attn_4="4.0.0b36") == ["ZG020"]


def test_a_release_candidate_of_a_bad_version_is_bad() -> None:
    assert refused(triton="3.9.0rc1") == ["ZG002"]


def test_outside_the_measured_set_is_a_warning() -> None:
    installed = MEASURED | {"torch": "2.11.0+cu130", "flash-attn-4": "4.0.0b28"}
    assert check_packages(BLACKWELL, installed=installed) == Findings(
        warnings=("flash-attn-4 is 4.0.0b28, measured was 4.0.0b29 [ZG007]",)
    )


def test_a_cpu_needs_no_gpu_package() -> None:
    installed = MEASURED | dict.fromkeys(("transformer-engine", "transformer-engine-torch", "flash-attn-4"))
    assert check_packages(CPU, installed=installed) == Findings()


def test_flash_attention_4_is_asked_for_only_where_the_run_uses_it() -> None:
    ordinary = compose(["platform=hopper"]).config
    installed = MEASURED | dict.fromkeys(("flash-attn-4", "nvidia-cutlass-dsl", "nvidia-cutlass-dsl-libs-base"))
    assert check_packages(ordinary, installed=installed) == Findings()


def test_metadata_of_this_environment_is_read() -> None:
    installed = installed_packages()
    assert installed["torch"] == importlib.metadata.version("torch")
    assert installed["megatron-core"] == importlib.metadata.version("megatron-core")
    assert set(installed) == set(MEASURED)


def test_this_environment_may_run_the_cpu_platform() -> None:
    assert check_node(CPU).violations == ()


@pytest.mark.parametrize(
    ("platform", "capability", "fine"),
    [
        (PlatformKind.hopper, (8, 0), False),
        (PlatformKind.hopper, (9, 0), True),
        (PlatformKind.hopper, (10, 0), False),
        (PlatformKind.blackwell, (9, 0), False),
        (PlatformKind.blackwell, (10, 0), True),
        (PlatformKind.blackwell, (10, 3), True),
        (PlatformKind.blackwell, (12, 0), False),
    ],
)
def test_capabilities(platform: PlatformKind, capability: tuple[int, int], fine: bool) -> None:
    assert (check_capabilities(platform, found=[capability]) == Findings()) is fine


def test_every_unfit_gpu_is_named(golden: Golden) -> None:
    found = check_capabilities(PlatformKind.blackwell, found=[(9, 0), (10, 0), (12, 0)])
    golden("\n".join(found.violations), name="zero_kl/ZG031.txt")


def test_no_gpu_is_refused(golden: Golden) -> None:
    (line,) = check_capabilities(PlatformKind.hopper, found=[]).violations
    golden(line, name="zero_kl/ZG030.txt")


def test_features_of_megatron_core_0_19_2(golden: Golden) -> None:
    found = check_features({"batch_invariant_mode", "flash_attention_version"})
    assert found.violations == ()
    golden("\n".join(found.warnings), name="zero_kl/features_0_19_2.txt")


def test_a_feature_nothing_stands_in_for_is_refused(golden: Golden) -> None:
    found = check_features({"batch_invariant_backend", "batch_invariant_collective"})
    assert found.warnings == ()
    golden("\n".join(found.violations), name="zero_kl/features_refused.txt")


def test_gpus_are_counted_by_their_device_files(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia7", "nvidia12", "nvidiactl", "nvidia-uvm", "nvidia-modeset", "null"):
        (tmp_path / name).touch()
    assert count_gpus(tmp_path) == 3


H200 = """\
NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (nixbld@)
GCC version:  gcc version 15.3.0 (GCC)
"""
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23 22:50:36 UTC 2025\n"


@pytest.mark.parametrize(
    ("text", "version"),
    [(H200, "580.159.04"), (CLOSED, "570.86.15"), ("", None)],
)
def test_driver_version_is_read(text: str, version: str | None, tmp_path: Path) -> None:
    (tmp_path / "version").write_text(text)
    assert read_driver(tmp_path / "version") == version


def test_no_driver_file_is_no_driver(tmp_path: Path) -> None:
    assert read_driver(tmp_path / "absent") is None


@pytest.mark.parametrize(("version", "warned"), [(None, 0), ("580.65.06", 0), ("590.1", 0), ("570.172.08", 1)])
def test_an_old_driver_is_a_warning(version: str | None, warned: int) -> None:
    found = check_driver(version)
    assert (len(found.warnings), found.violations) == (warned, ())


def test_findings_raise_with_a_header_and_add_up(caplog: pytest.LogCaptureFixture) -> None:
    found = Findings(violations=("a",), warnings=("w",)) + Findings(violations=("b",))
    with pytest.raises(NodeError, match="node refused") as caught:
        found.raise_if_invalid("node refused")
    assert str(caught.value) == "node refused\n\na\n\nb"
    found.emit_warnings()
    assert caplog.messages == ["w"]
    Findings(warnings=("w",)).raise_if_invalid("fine")


@pytest.mark.gpu
def test_this_hopper_node_is_fine() -> None:
    found = check_node(compose(["+preset=zero_kl_hopper"]).config)
    assert found.violations == ()

"""The gate that is opened for flash-attn-4 b19, and for no other version. What its kernels compute needs a GPU."""

from pathlib import Path

import pytest

from launcher.errors import NodeError
from launcher.patches import applied


def _install(version: str, *, folder: Path) -> None:
    """Metadata as pip leaves it; of the package itself nothing is read here."""
    info = folder / f"flash_attn_4-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: flash-attn-4\nVersion: {version}\n")


@pytest.mark.usefixtures("cpu_platform")
def test_b19_is_let_in_and_the_gate_closes_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from megatron.core.transformer import attention

    from zero_kl.kernels import flash

    _install("4.0.0b19", folder=tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before = attention.HAVE_FA4
    with pytest.raises(KeyError), applied(flash.patches()):
        assert attention.HAVE_FA4 is True
        raise KeyError
    assert attention.HAVE_FA4 is before


@pytest.mark.parametrize("version", [None, "4.0.0b18", "4.0.0b20", "4.0.0b29"])
def test_another_version_needs_no_patch_and_gets_none(
    version: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from zero_kl.kernels import flash

    if version is not None:
        _install(version, folder=tmp_path)
        monkeypatch.syspath_prepend(tmp_path)
    assert flash.patches() == ()
    with pytest.raises(NodeError, match="flash-attn-4 is"), applied(flash.PATCHES):
        pass

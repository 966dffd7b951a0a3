"""Patches against a real module of the standard library: nothing of ours is mocked."""

import colorsys
import importlib.metadata

import pytest

from launcher.errors import NodeError
from launcher.patches import Patch, Rung, applied, prove

PYTEST = importlib.metadata.version("pytest")
ORIGINAL = colorsys.rgb_to_hls


def _patch(**changes: object) -> Patch:
    fields = {
        "targets": ("colorsys.rgb_to_hls",),
        "replacement": colorsys.rgb_to_hsv,
        "why": "a test",
        "upstream": "none",
        "tested_versions": {"pytest": f"=={PYTEST}"},
        "remove_when": "never",
        "rung": Rung.MONKEYPATCH,
        "rung_reason": "a test",
    }
    return Patch(**{**fields, **changes})


def test_applies_and_restores() -> None:
    with applied([_patch()]):
        assert colorsys.rgb_to_hls is colorsys.rgb_to_hsv
    assert colorsys.rgb_to_hls is ORIGINAL


def test_nests() -> None:
    inner = _patch(replacement=colorsys.rgb_to_yiq)
    with applied([_patch()]):
        with applied([inner]):
            assert colorsys.rgb_to_hls is colorsys.rgb_to_yiq
        assert colorsys.rgb_to_hls is colorsys.rgb_to_hsv
    assert colorsys.rgb_to_hls is ORIGINAL


def test_restores_after_an_exception() -> None:
    with pytest.raises(ZeroDivisionError), applied([_patch()]):
        raise ZeroDivisionError
    assert colorsys.rgb_to_hls is ORIGINAL


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tested_versions": {"pytest": "==0.1"}}, f"pytest is {PYTEST}"),
        ({"tested_versions": {"no-such-package": "==1"}}, "no-such-package is absent"),
        ({"targets": ("colorsys.rgb_to_hls", "colorsys.no_such_function")}, "colorsys.no_such_function does not exist"),
    ],
)
def test_refuses_and_leaves_nothing_applied(changes: dict[str, object], said: str) -> None:
    with pytest.raises(NodeError, match=said), applied([_patch(), _patch(**changes)]):
        pass
    assert colorsys.rgb_to_hls is ORIGINAL


def test_notices_a_patch_that_did_not_take() -> None:
    with pytest.raises(NodeError, match="not in force"):
        prove([_patch()])

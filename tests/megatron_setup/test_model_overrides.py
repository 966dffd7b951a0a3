"""model_overrides: merged level by level into a copy, refused with the dotted path, never twice for one field."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from launcher.compose import compose
from launcher.errors import ConfigError
from launcher.keys import keys_of
from megatron_setup.model_overrides import FIRST_CLASS, merge_overrides
from megatron_setup.tables import provider_fields
from tests.other_values import with_another_value


@dataclass
class Vision:
    """A part of a provider that is a configuration itself."""

    num_layers: int = 2
    rope: dict[str, Any] = field(default_factory=lambda: {"theta": 10000.0, "axes": {"x": 1, "y": 2}})


@dataclass
class Whole:
    """A provider with a nested part; `made` is no argument."""

    softmax_scale: float | None = None
    vision: Vision = field(default_factory=Vision)
    made: int = field(default=0, init=False)


def test_nothing_to_merge_gives_an_equal_copy() -> None:
    whole = Whole()
    merged = merge_overrides(whole, overrides={})
    assert merged == whole
    assert merged is not whole


def test_merges_level_by_level_and_leaves_its_input_alone() -> None:
    whole, overrides = Whole(), {"softmax_scale": 0.5, "vision": {"num_layers": 4, "rope": {"axes": {"x": 7}}}}
    merged = merge_overrides(whole, overrides=overrides)
    assert merged == Whole(
        softmax_scale=0.5, vision=Vision(num_layers=4, rope={"theta": 10000.0, "axes": {"x": 7, "y": 2}})
    )
    assert whole == Whole()
    assert overrides == {"softmax_scale": 0.5, "vision": {"num_layers": 4, "rope": {"axes": {"x": 7}}}}


def test_what_is_merged_into_is_a_copy() -> None:
    whole = Whole()
    merged = merge_overrides(whole, overrides={"vision": {"rope": {"axes": {"z": 3}}}})
    merged.vision.rope["axes"]["x"] = 99
    assert whole.vision.rope["axes"] == {"x": 1, "y": 2}
    assert merged.vision is not whole.vision


def test_a_plain_value_replaces_a_part() -> None:
    assert merge_overrides(Whole(), overrides={"vision": None}).vision is None
    assert merge_overrides(Whole(), overrides={"softmax_scale": {"a": 1}}).softmax_scale == {"a": 1}


@pytest.mark.parametrize(
    ("overrides", "path", "near"),
    [
        ({"sofmax_scale": 1.0}, "model.model_overrides.sofmax_scale is not a field of Whole", "nearest: softmax_scale"),
        ({"vision": {"layers": 1}}, "model.model_overrides.vision.layers is not a field of Vision", "num_layers"),
        ({"made": 1}, "model.model_overrides.made is not a field of Whole", "nearest:"),
    ],
)
def test_unknown_field_is_refused_with_its_path_and_the_nearest(
    overrides: dict[str, Any], path: str, near: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        merge_overrides(Whole(), overrides=overrides)
    assert path in str(caught.value)
    assert near in str(caught.value)


def test_every_field_that_a_table_sets_has_its_key_in_the_list() -> None:
    """Else an override and a key could both set it: the one who merges last would win without a word."""
    config = compose(["platform=hopper", "model=tiny_moe"]).config
    fields = {
        name
        for key in keys_of()
        if key != "generation.backend"
        for name in provider_fields(with_another_value(config, key=key), has_experts=True)
    }
    assert fields - FIRST_CLASS.keys() == {"should_pad_vocab"}
    assert set(FIRST_CLASS.values()) <= keys_of().keys()

"""Guards for Hugging Face configurations that cannot be built from parts which are built already.

Owns the patch rows and which of them a run_config.yaml needs. Values of config.json are `launcher.hf_config`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from transformers import PreTrainedConfig

from launcher.patches import Patch, Rung

_QWEN3_OMNI = "transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe"


def build_nested(self: PreTrainedConfig, **kwargs: Any) -> None:
    """`__post_init__` of a configuration with `sub_configs`: built where they are a mapping or absent, else kept."""
    for name, config_class in self.sub_configs.items():
        given = getattr(self, name)
        if not isinstance(given, config_class):
            setattr(self, name, config_class(**(given or {})))
    PreTrainedConfig.__post_init__(self, **kwargs)


GUARDS: tuple[Patch, ...] = (
    Patch(
        targets=(f"{_QWEN3_OMNI}.Qwen3OmniMoeTalkerConfig.__post_init__",),
        replacement=build_nested,
        why="the talker unpacks its nested configurations with ** though Bridge's instantiate has built them: a "
        "run_config.yaml with a _target_ on each of them, as megatron-core's container writes it, cannot be loaded "
        "(TypeError: argument after ** must be a mapping). Bridge 0.6.2 itself leaves nested _target_ out",
        upstream="transformers 5.12.1 models/qwen3_omni_moe/configuration_qwen3_omni_moe.py, lines 494-508; the other "
        "190 configurations with nested ones, but Qwen3OmniMoeConfig around it, take built ones",
        tested_versions={"transformers": "==5.12.1"},
        remove_when="Qwen3OmniMoeTalkerConfig takes built nested configurations",
        rung=Rung.MONKEYPATCH,
        rung_reason="run_config.yaml names upstream's class, so a subclass of ours would not be the one that is built",
    ),
)


def guards_for(section: Mapping[str, Any]) -> list[Patch]:
    """The guards of the classes that a part of run_config.yaml names: other models do not depend on their versions."""
    named = set(_targets(section))
    return [patch for patch in GUARDS if any(name.startswith(_class_of(patch)) for name in named)]


def _class_of(patch: Patch) -> str:
    return patch.targets[0].rpartition(".")[0]


def _targets(part: Any) -> Iterator[str]:
    """Every `_target_` in a nested configuration."""
    if isinstance(part, Mapping):
        mapping = cast(Mapping[str, Any], part)
        if isinstance(mapping.get("_target_"), str):
            yield mapping["_target_"]
        part = list(mapping.values())
    if isinstance(part, list):
        for item in cast(Sequence[Any], part):
            yield from _targets(item)

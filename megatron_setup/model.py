"""The model itself: sequence length, dropout, vocabulary, frozen parts. Owns those provider fields, and the rules about
where the weights come from, RoPE scaling and overrides. Torch-free.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from launcher.hf_config import effective_hf_config, overrides_in_force
from launcher.keys import as_typed, plain
from launcher.requirement import Between, Check, Equals, Finding, Requirement, Severity, Subject, show
from launcher.schema import RunConfig
from launcher.schema.model import CheckpointFormat
from megatron_setup.iterations import NotACheckpointError, find_iteration
from megatron_setup.model_overrides import FIRST_CLASS
from megatron_setup.rows import given, where

_BRIDGE = "megatron-bridge 0.6.2 models/conversion/model_bridge.py, hf_config_to_provider_kwargs"

_OVERRIDES = "model.hf_config_overrides"

_OPTIONAL = (
    "make_vocab_size_divisible_by",
    "perform_initialization",
    "freeze_language_model",
    "freeze_vision_model",
    "freeze_vision_projection",
)


def provider_fields(config: RunConfig) -> dict[str, Any]:
    """Length and dropout always, the rest where given. Bridge pads the vocabulary only with `should_pad_vocab`."""
    model = config.model
    padding = {} if model.make_vocab_size_divisible_by is None else {"should_pad_vocab": True}
    return {
        "seq_length": model.seq_length,
        "attention_dropout": model.attention_dropout,
        "hidden_dropout": model.hidden_dropout,
        **given(model, names=_OPTIONAL),
        **padding,
    }


YARN_DEFAULTS: Mapping[str, Any] = {
    "truncate": True,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 0.0,
}
"""What transformers means where config.json leaves one out."""

YARN_FIELDS = ("factor", "rope_theta", "original_max_position_embeddings", *YARN_DEFAULTS)
"""What Bridge hands on to megatron-core's YarnRotaryEmbedding, in Hugging Face spelling."""


def _scaling(config: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
    """The mapping that scales RoPE by yarn, and its name: `rope_parameters` since transformers 5, or `rope_scaling`."""
    for name in ("rope_parameters", "rope_scaling"):
        found = config.get(name)
        if isinstance(found, Mapping):
            scaling = cast(Mapping[str, Any], found)
            if "yarn" in (scaling.get("rope_type"), scaling.get("type")):
                return name, scaling
    return None


def _yarn_is_complete(place: str) -> Check:
    """All eight are there; `rope_theta` may stand beside the mapping. The hint fills in, or drops the scaling."""

    def test(subject: Subject) -> Finding | None:
        model = subject.config.model
        config = effective_hf_config(model) or model.hf_config_overrides
        found = _scaling(config)
        if found is None:
            return None
        name, scaling = found
        missing = [f for f in YARN_FIELDS if f not in scaling and not (f == "rope_theta" and f in config)]
        if not missing:
            return None
        hints = tuple(f"++{place}.{name}.{f}={as_typed(YARN_DEFAULTS[f])}" for f in missing if f in YARN_DEFAULTS)
        known = all(f in YARN_DEFAULTS for f in missing)
        return Finding(
            found=f"yarn with {', '.join(f for f in YARN_FIELDS if f not in missing) or 'nothing'}",
            wanted=f"{', '.join(missing)} too",
            arithmetic="" if known else "factor, rope_theta and original_max_position_embeddings have no default",
            hints=hints if known else (f"++{place}.{name}=null",),
        )

    return Check(f"yarn scaling with all of {', '.join(YARN_FIELDS)}", test)


def _overrides_nothing_known(subject: Subject) -> Finding | None:
    overrides = subject.config.model.model_overrides
    known = {name: FIRST_CLASS[name] for name in overrides if name in FIRST_CLASS}
    if not known:
        return None
    return Finding(
        found=show(as_typed(plain(overrides))),
        wanted=" and ".join(f"{key} instead of model.model_overrides.{name}" for name, key in known.items()),
        hints=tuple(f"~model.model_overrides.{name}" for name in known),
    )


def _is_a_checkpoint(subject: Subject) -> Finding | None:
    pretrained = subject.config.model.pretrained_checkpoint
    if pretrained.path is None:
        return None
    try:
        find_iteration(Path(pretrained.path), format=pretrained.format)
    except NotACheckpointError as error:
        off = ("model.pretrained_checkpoint.path=null", f"model.pretrained_checkpoint.format={BRIDGE.value}")
        return Finding(found=error.found, wanted=error.wanted, hints=error.hints or off)
    return None


def _overrides_nothing(subject: Subject) -> Finding | None:
    overrides = subject.config.model.hf_config_overrides
    if not overrides:
        return None
    hints = tuple(f"~model.hf_config_overrides.{name}" for name in overrides)
    return Finding(found=as_typed(plain(overrides)), wanted="no overrides", hints=hints)


def _comes_from_somewhere(subject: Subject) -> Finding | None:
    model = subject.config.model
    if model.hf_path is not None or model.hf_config:
        return None
    return Finding(found="null", wanted="a folder or a Hub id, or model.hf_config", hints=("model=tiny",))


STORED = where("the model", text="model.hf_path is set", test=lambda c: c.model.hf_path is not None)
STORED_ONLY = STORED & where("", text="model.hf_config is empty", test=lambda c: not c.model.hf_config)
MADE = where("the model", text="model.hf_config is set", test=lambda c: bool(c.model.hf_config))
OVERRIDDEN = where(
    "the run", text="model.hf_config_overrides is in force", test=lambda c: bool(overrides_in_force(c.model))
)
AS_IT_IS = where("the run", text="model.hf_config_overrides is empty", test=lambda c: not c.model.hf_config_overrides)

BRIDGE = CheckpointFormat.megatron_bridge
PRETRAINED = where(
    "the run",
    text="model.pretrained_checkpoint.path is set",
    test=lambda c: c.model.pretrained_checkpoint.path is not None,
)
NOT_PRETRAINED = where(
    "the run",
    text="model.pretrained_checkpoint.path is null",
    test=lambda c: c.model.pretrained_checkpoint.path is None,
)
IN_BRIDGES_FORMAT = PRETRAINED & where(
    "the run",
    text="model.pretrained_checkpoint.format is megatron_bridge",
    test=lambda c: c.model.pretrained_checkpoint.format is BRIDGE,
)

REQUIREMENTS: tuple[Requirement, ...] = (
    Requirement(
        code="MD001",
        key="model.hf_path",
        want=Check("a source of weights", _comes_from_somewhere),
        why="the weights come from a checkpoint or are made from model.hf_config",
        source="megatron_setup/hf_folder.py",
        reads=("model.hf_config",),
    ),
    Requirement(
        code="MD002",
        key="model.hf_path",
        want=Equals(None),
        when=MADE,
        why="two sources: the rules would read the shape of one and the run the weights of the other",
        source="launcher/validate.py, megatron_setup/hf_folder.py",
        reads=("model.hf_config",),
    ),
    Requirement(
        code="MD003",
        key="model.init_seed",
        want=Equals(0),
        when=STORED_ONLY,
        why="no weights are drawn: they are the checkpoint's",
        source="megatron_setup/hf_folder.py",
        reads=("model.hf_path",),
    ),
    *(
        Requirement(
            code=code,
            key=key,
            want=Between(low=0.0, high=1.0),
            why="it is a probability",
            source="megatron-core 0.19.2 transformer/transformer_config.py",
        )
        for code, key in (("MD004", "model.attention_dropout"), ("MD005", "model.hidden_dropout"))
    ),
    *(
        Requirement(
            code=code,
            key=key,
            want=_yarn_is_complete(place),
            when=when,
            why="Bridge hands a missing field on as null, where transformers has a default: no rounding without "
            "truncate, 10000 for a missing rope_theta, a crash for most others",
            source=_BRIDGE,
            reads=reads,
        )
        for code, key, place, when, reads in (
            ("MD010", "model.hf_config", "model.hf_config", MADE & AS_IT_IS, ("model.hf_config_overrides",)),
            ("MD011", _OVERRIDES, _OVERRIDES, OVERRIDDEN, ("model.hf_config", "model.hf_path")),
            ("MD012", "model.hf_path", _OVERRIDES, STORED_ONLY & AS_IT_IS, (_OVERRIDES,)),
        )
    ),
    Requirement(
        code="MD020",
        key="model.model_overrides",
        want=Check("no field that has a key of its own", _overrides_nothing_known),
        why="a field with two keys has two values, and the rules check one of them",
        source="megatron_setup/model_overrides.py, FIRST_CLASS",
    ),
    Requirement(
        code="MD030",
        key="model.pretrained_checkpoint.path",
        want=Check("a checkpoint of model.pretrained_checkpoint.format, written to its end", _is_a_checkpoint),
        when=PRETRAINED,
        why="a folder that is no finished checkpoint fails on the node, after the GPUs were given",
        source="megatron_setup/iterations.py",
        reads=("model.pretrained_checkpoint.format",),
    ),
    Requirement(
        code="MD031",
        key="model.pretrained_checkpoint.format",
        want=Equals(BRIDGE),
        when=NOT_PRETRAINED,
        why="there is no path that would have this format",
        source="megatron_setup/model_source.py",
        reads=("model.pretrained_checkpoint.path",),
    ),
    Requirement(
        code="MD032",
        key=_OVERRIDES,
        want=Check("no overrides", _overrides_nothing),
        when=IN_BRIDGES_FORMAT,
        severity=Severity.WARNING,
        why="they are ignored: a Bridge checkpoint brings the configuration it was trained with",
        source="launcher/hf_config.py, overrides_in_force",
        reads=("model.pretrained_checkpoint.path", "model.pretrained_checkpoint.format"),
    ),
    Requirement(
        code="MD033",
        key="model.force_reconvert_from_hf",
        want=Equals(False),
        when=PRETRAINED,
        why="nothing is converted: the weights are the checkpoint's",
        source="megatron_setup/model_import.py",
        reads=("model.pretrained_checkpoint.path",),
    ),
)

"""The model's configuration: from a checkpoint's run_config.yaml, or from config.json for a Megatron-LM checkpoint.

Owns what makes a run_config.yaml unusable, in words. The run's own settings are set by `provider` afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, cast

from megatron.bridge import AutoBridge
from megatron.bridge.models.model_provider import ModelProviderMixin
from megatron.bridge.training.checkpointing import read_run_config
from megatron.bridge.training.model_load_save import load_model_config
from megatron.bridge.utils.instantiate_utils import InstantiationException, _resolve_target
from transformers import AutoConfig

from launcher.errors import ConfigError
from launcher.hf_config import effective_hf_config
from launcher.patches import applied
from launcher.schema import RunConfig, architecture_from_hf_config
from launcher.schema.model import CheckpointFormat
from launcher.suggest import nearest
from megatron_setup.hf_config import guards_for
from megatron_setup.iterations import RUN_CONFIG
from megatron_setup.model_source import ModelSource

_SAME = ("num_layers", "hidden_size", "num_attention_heads", "vocab_size", "num_moe_experts")
"""What tells two models apart, in the spelling of both `Architecture` and the providers."""


def load_provider(config: RunConfig, *, source: ModelSource) -> Any:
    """Bridge's provider of the source's model, not finalized, with none of the run's settings in it.

    All ranks call it: Bridge reads run_config.yaml on rank 0, migrates it, and broadcasts. Raises ConfigError naming
    file and field where it cannot be used, or where it is not the model of `model.hf_path`.
    """
    if source.format is CheckpointFormat.megatron_lm:
        return _from_config_json(source.hf_folder)
    provider = _from_run_config(source.iteration / RUN_CONFIG, advice=_advice(config))
    _check_same_model(config, provider=provider, iteration=source.iteration)
    return provider


def _from_config_json(hf_folder: Path) -> Any:
    """Megatron-LM's checkpoints carry their arguments, not a provider: the architecture is config.json's."""
    bridge = AutoBridge.from_hf_config(AutoConfig.from_pretrained(hf_folder))
    provider: Any = bridge.to_megatron_provider(load_weights=False)
    provider.perform_initialization = False  # every weight is the checkpoint's, as after a conversion
    return provider


def _from_run_config(path: Path, *, advice: str) -> Any:
    try:
        run_config: Any = read_run_config(str(path))
        section = _model_section(run_config)
        _check_fields(section)
        with applied(guards_for(section)):
            return load_model_config(str(path.parent))[0]
    except (RuntimeError, InstantiationException, ImportError, TypeError, ValueError) as error:
        raise ConfigError(f"error: {path} cannot be used\n  why:    {error}\n{advice}") from error


def _model_section(run_config: Any) -> Mapping[str, Any]:
    """Raises ValueError with what a person sees under `why`, as all checks here."""
    section: Any = run_config.get("model") if isinstance(run_config, dict) else None
    if not isinstance(section, dict):
        raise ValueError("it has no `model`: another program wrote it, or a very old Megatron-Bridge")
    return cast(Mapping[str, Any], section)


def _check_fields(section: Mapping[str, Any]) -> None:
    """Bridge drops a field that the provider does not have, with a warning in the log: a model of another shape."""
    target = section.get("_target_")
    if not isinstance(target, str):
        raise ValueError("`model` has no `_target_`, the class of the provider")
    provider_class: Any = _resolve_target(target, "model")
    if not (is_dataclass(provider_class) and issubclass(cast(type, provider_class), ModelProviderMixin)):
        raise ValueError(f"`model._target_` is {target}, which is no model provider of Megatron-Bridge")
    known = [field.name for field in fields(provider_class)]
    for name, value in section.items():
        if value is not None and not name.startswith("_") and name not in known:  # null asks for nothing
            raise ValueError(
                f"`model.{name}` is {value}, and the installed Megatron-Bridge's {target.rpartition('.')[2]} has no "
                f"such field; nearest: {', '.join(nearest(name, names=known)[:3])}"
            )


def _advice(config: RunConfig) -> str:
    if config.model.pretrained_checkpoint.path is None:
        return "hint: model.force_reconvert_from_hf=true"
    return (
        "  advice: the weights do not need it: megatron_lm reads the architecture from model.hf_path's config.json\n"
        f"hint: model.pretrained_checkpoint.format={CheckpointFormat.megatron_lm.value}"
    )


def _check_same_model(config: RunConfig, *, provider: Any, iteration: Path) -> None:
    """The rules were checked against the shape in config.json, and the tokenizer is of that folder."""
    hf_config = effective_hf_config(config.model)
    architecture = None if hf_config is None else architecture_from_hf_config(hf_config)
    if architecture is None:
        return
    for name in _SAME:
        found, wanted = getattr(provider, name), getattr(architecture, name)
        if found != wanted:
            raise ConfigError(
                f"error: {iteration / RUN_CONFIG} has model.{name} {found}, the model of this run has {wanted}\n"
                "  why:    the rules and the tokenizer are those of model.hf_path or model.hf_config, the weights "
                "would be another model's"
            )

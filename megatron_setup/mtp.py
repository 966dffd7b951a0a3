"""Multi-token prediction. Owns the provider's `mtp_*` fields and their rules. Torch-free."""

from typing import Any

from launcher.requirement import Check, Equals, Finding, Requirement, Subject, show
from launcher.schema import RunConfig
from megatron_setup.rows import given, unread, where

_GPT = "megatron-core 0.19.2 models/gpt/gpt_model.py"


def provider_fields(config: RunConfig) -> dict[str, Any]:
    """`mtp_num_layers` always, so that null drops the heads of a checkpoint that has some; the rest where given."""
    optional = ("mtp_loss_scaling_factor", "mtp_use_repeated_layer", "mtp_detach_heads")
    return {"mtp_num_layers": config.mtp.mtp_num_layers, **given(config.mtp, names=optional)}


def _none_or_some(subject: Subject) -> Finding | None:
    found = subject.config.mtp.mtp_num_layers
    if found is None or found >= 1:
        return None
    return Finding(found=show(found), wanted="null or at least 1", hints=("mtp.mtp_num_layers=null",))


HEADS = where("multi-token prediction", text="mtp_num_layers is set", test=lambda c: c.mtp.mtp_num_layers is not None)
MADE = where("a random model", text="model.hf_config is set", test=lambda c: bool(c.model.hf_config))
NO_HEADS = where("megatron-core", text="mtp_num_layers is null", test=lambda c: c.mtp.mtp_num_layers is None)

REQUIREMENTS: tuple[Requirement, ...] = (
    Requirement(
        code="MT001",
        key="mtp.mtp_num_layers",
        want=Check("null or at least 1", _none_or_some),
        why="0 is not null to megatron-core: it places the final norm as for a model with heads, and builds none",
        source="megatron-core 0.19.2 transformer/transformer_block.py, has_final_layernorm_in_this_stage",
    ),
    Requirement(
        code="MT002",
        key="parallelism.pipeline_model_parallel_size",
        want=Equals(1),
        when=HEADS,
        why="the heads sit on the last stage and train a second copy of the embedding there; "
        "that both copies stay equal was not shown",
        source=f"{_GPT}, mtp_process",
        reads=("mtp.mtp_num_layers",),
    ),
    *unread(
        {
            "MT003": "mtp.mtp_loss_scaling_factor",
            "MT004": "mtp.mtp_use_repeated_layer",
            "MT005": "mtp.mtp_detach_heads",
        },
        when=NO_HEADS,
        why="without heads nothing reads it",
        source=_GPT,
        reads=("mtp.mtp_num_layers",),
    ),
    Requirement(
        code="MT006",
        key="mtp.mtp_num_layers",
        want=Equals(None),
        when=MADE,
        why="transformers makes no prediction heads, so there are none to convert and to load",
        source="transformers 5.12.1 models/deepseek_v3/modeling_deepseek_v3.py, _keys_to_ignore_on_load_unexpected",
        reads=("model.hf_config",),
    ),
)

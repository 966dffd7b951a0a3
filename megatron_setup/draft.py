"""The draft model's settings. Owns which of the policy's layers it reads, and the rules. Torch-free."""

from __future__ import annotations

from launcher.requirement import Between, Check, Equals, Finding, OneOf, Requirement, Severity, Subject, show
from launcher.schema import Dtype, RunConfig
from launcher.schema.layout import derive_layout
from launcher.schema.model import DraftConfig
from megatron_setup.rows import above_zero, where

_MODEL = "megatron_setup/draft_model.py"
_EAGLE = "modelopt 0.47.0 torch/speculative/plugins/megatron_eagle.py"
_INDICES = "model.draft.aux_layer_indices"


def aux_layers(config: RunConfig, *, num_layers: int) -> tuple[int, ...]:
    """Policy layers, from 0 and ascending, whose outputs the draft reads; `num_layers` is the policy's.

    null: EAGLE-3's three, an early, a middle and a late one, as modelopt counts them; fewer where they coincide.
    """
    given = config.model.draft.aux_layer_indices
    if given is not None:
        return tuple(given)
    early, middle, late = min(1, num_layers - 1), max(0, num_layers // 2 - 1), max(0, num_layers - 4)
    return tuple(sorted({early, middle, late}))


def _set_for_nothing(subject: Subject) -> Finding | None:
    """The keys that are not at their defaults."""
    found, plain = subject.config.model.draft, DraftConfig()
    idle = {name: value for name, value in vars(plain).items() if getattr(found, name) != value}
    if not idle:
        return None
    return Finding(
        found=f"set ({', '.join(idle)})",
        wanted="nothing, or model.draft.enabled=true",
        hints=tuple(f"model.draft.{name}={show(value)}" for name, value in idle.items()),
    )


def _layers_of_the_policy(subject: Subject) -> Finding | None:
    """Ascending, each once, at least one, all there."""
    found = subject.config.model.draft.aux_layer_indices
    if found is None:
        return None
    last = None if subject.architecture is None else subject.architecture.num_layers - 1
    valid = sorted({index for index in found if index >= 0 and (last is None or index <= last)})
    if found and found == valid:
        return None
    return Finding(
        found=show(found),
        wanted=f"null or ascending layers from 0{'' if last is None else f' to {last}'}",
        hints=(f"{_INDICES}={show(valid or None)}",),
    )


_WHO = "the draft model"
OFF = where(_WHO, text="model.draft.enabled is false", test=lambda c: not c.model.draft.enabled)
ON = where(_WHO, text="model.draft.enabled is true", test=lambda c: c.model.draft.enabled)
WITH_LORA = ON & where("", text="model.peft.enabled is true", test=lambda c: c.model.peft.enabled)
SHARDED = ON & where(
    "",
    text="the distributed optimizer runs on several data-parallel ranks",
    test=lambda c: c.optimizer.use_distributed_optimizer and derive_layout(c).data_parallel_size > 1,
)
WITH_HEADS = ON & where("", text="mtp.mtp_num_layers is set", test=lambda c: c.mtp.mtp_num_layers is not None)

OWN_ROWS: tuple[Requirement, ...] = (
    Requirement(
        code="DR001",
        key="model.draft",
        want=Check("nothing set", _set_for_nothing),
        when=OFF,
        severity=Severity.WARNING,
        why="without a draft model nothing reads it",
        source=_MODEL,
    ),
    Requirement(
        code="DR002",
        key="model.draft.num_layers",
        want=Between(low=1),
        when=ON,
        why="the first layer is where the token and the policy's hidden states meet",
        source=_EAGLE,
    ),
    Requirement(
        code="DR003",
        key="model.draft.loss_weight",
        want=above_zero("model.draft.loss_weight", typed="1.0"),
        when=ON,
        why="0 would train nothing, and less would train away from the policy",
        source=_MODEL,
    ),
    Requirement(
        code="DR004",
        key=_INDICES,
        want=Check("ascending layers of the policy", _layers_of_the_policy),
        when=ON,
        why="the outputs are put side by side in the order of the layers, and a layer that is not there has none",
        source=f"{_EAGLE}, _transformer_layer_forward_hook",
        reads=("model.hf_path", "model.hf_config"),
    ),
    Requirement(
        code="DR005",
        key="model.draft.enabled",
        want=Equals(False),
        when=WITH_LORA,
        why="LoRA freezes all that is there when it comes, the draft too, and gives the draft adapters",
        source="megatron-bridge 0.6.2 peft/base.py, PEFT.__call__",
        reads=("model.peft.enabled",),
    ),
)

OTHER_ROWS: tuple[Requirement, ...] = (
    Requirement(
        code="DR010",
        key="parallelism.pipeline_model_parallel_size",
        want=Equals(1),
        when=ON,
        why="it sits where the logits are, and reads the embedding and early layers, which are on other stages",
        source=f"{_EAGLE}, _DynamicEagleGPTModel.modify",
        reads=("model.draft.enabled",),
    ),
    Requirement(
        code="DR011",
        key="parallelism.context_parallel_size",
        want=Equals(1),
        when=ON,
        why="a position learns from the policy's logits of the next one, which may be on another rank",
        source=_MODEL,
        reads=("model.draft.enabled",),
    ),
    Requirement(
        code="DR012",
        key="precision.dtype",
        want=OneOf((Dtype.bfloat16, Dtype.float32)),
        when=ON,
        why="float16 has one loss scale for both: an overflow of the draft's gradients would skip the policy's step",
        source="megatron-core 0.19.2 optimizer/optimizer.py, prepare_grads",
        reads=("model.draft.enabled",),
    ),
    Requirement(
        code="DR013",
        key="model.hidden_dropout",
        want=Equals(0.0),
        when=ON,
        why="the draft runs the policy's embedding once more, whose dropout would draw the policy's random numbers",
        source="megatron-core 0.19.2 models/common/embeddings/language_model_embedding.py",
        reads=("model.draft.enabled",),
    ),
    Requirement(
        code="DR014",
        key="mtp.mtp_detach_heads",
        want=OneOf((False, None)),
        when=WITH_HEADS,
        why="megatron-core clips one group of gradients apart from the policy's, and the draft is in it: detached "
        "heads would be clipped by a norm that has the draft's gradients",
        source="megatron-core 0.19.2 optimizer/optimizer.py, SEPARATE_GRAD_NORM_GROUPS",
        reads=("model.draft.enabled", "mtp.mtp_num_layers"),
    ),
    Requirement(
        code="DR015",
        key="performance.sequence_packing.enabled",
        want=Equals(False),
        when=ON,
        why="the draft attends over whole rows: packed sequences would see each other",
        source=_MODEL,
        reads=("model.draft.enabled",),
    ),
    Requirement(
        code="DR016",
        key="optimizer.clip_grad",
        want=Equals(0.0),
        when=SHARDED,
        severity=Severity.WARNING,
        why="the policy has a norm of its own, but the draft moves the borders of the ranks' shards, and with them the "
        "order in which the norm is added: the last bits of the policy's weights are not those without a draft",
        source="megatron-core 0.19.2 optimizer/distrib_optimizer.py",
        reads=("model.draft.enabled", "optimizer.use_distributed_optimizer"),
    ),
    Requirement(
        code="DR017",
        key="checkpoint.also_save_hf_checkpoint",
        want=Equals(False),
        when=ON,
        why="Bridge goes through all weights of the model and stops at the draft's, which the Hugging Face model lacks",
        source="megatron-bridge 0.6.2 models/conversion/model_bridge.py, stream_weights_megatron_to_hf",
        reads=("model.draft.enabled",),
    ),
)

REQUIREMENTS: tuple[Requirement, ...] = OWN_ROWS + OTHER_ROWS

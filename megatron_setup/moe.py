"""Mixture of experts. Owns the provider's MoE fields, HybridEP's environment, and the rules about routing.

Those about the dispatcher are in `megatron_setup.dispatcher`. A dense model gets none of the fields. Torch-free.
"""

from typing import Any

from launcher.requirement import (
    Check,
    Condition,
    Equals,
    Finding,
    OneOf,
    Requirement,
    Severity,
    Subject,
    show,
)
from launcher.schema import MoeConfig, RunConfig
from launcher.schema.moe import LoadBalancing
from megatron_setup import dispatcher
from megatron_setup.dispatcher import ALLGATHER
from megatron_setup.rows import given, has_experts, is_dense, unread, where

_CONFIG = "megatron-core 0.19.2 transformer/transformer_config.py"
_ROUTER = "megatron-core 0.19.2 transformer/moe/router.py"

_FIELDS = (
    "moe_token_dispatcher_type",
    "inference_moe_token_dispatcher_type",
    "moe_permute_fusion",
    "moe_grouped_gemm",
    "moe_router_load_balancing_type",
    "moe_aux_loss_coeff",
    "moe_z_loss_coeff",
    "moe_router_enable_expert_bias",
    "moe_router_bias_update_rate",
    "moe_router_num_groups",
    "moe_router_group_topk",
    "moe_router_fusion",
    "moe_router_padding_for_quantization",
    "moe_shared_expert_overlap",
    "moe_expert_capacity_factor",
    "moe_pad_expert_input_to_capacity",
    "moe_pad_experts_for_cuda_graph_inference",
    "moe_latent_size",
    "moe_flex_dispatcher_backend",
    "moe_flex_dispatcher_num_sms",
    "moe_permute_fusion_into_hybridep",
    "moe_hybridep_num_blocks_permute",
    "moe_hybridep_num_blocks_unpermute",
    "moe_hybridep_num_sms_preprocessing",
)


def provider_fields(config: RunConfig) -> dict[str, Any]:
    """The settings that are not null, under the provider's own names; a null router dtype is a value like others."""
    return {"moe_router_dtype": config.moe.moe_router_dtype, **given(config.moe, names=_FIELDS)}


def environment(config: RunConfig) -> dict[str, str]:
    """HybridEP's own two variables, where they are given."""
    moe = config.moe
    variables = {
        "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN": moe.num_of_hybrid_ep_ranks_per_nvlink_domain,
        "USE_MNNVL": moe.use_mnnvl,
    }
    return {name: str(int(value)) for name, value in variables.items() if value is not None}


def _groups_fit(subject: Subject) -> Finding | None:
    """Group-limited routing: the groups divide the experts, and a token reaches no more groups than there are."""
    moe, shape = subject.config.moe, subject.architecture
    groups, reached = moe.moe_router_num_groups, moe.moe_router_group_topk
    assert shape is not None and shape.num_moe_experts is not None and reached is not None, "the row's condition"
    wanted = f"a divisor of {shape.num_moe_experts} that is at least moe_router_group_topk ({reached})"
    if groups is None or groups < 1:
        return Finding(found=show(groups), wanted=wanted, hints=("moe.moe_router_group_topk=null",))
    if shape.num_moe_experts % groups == 0 and reached <= groups:
        return None
    rest = shape.num_moe_experts % groups
    return Finding(
        found=show(groups),
        wanted=wanted,
        arithmetic=f"{shape.num_moe_experts} experts / {groups} groups leaves {rest}; {reached} of {groups} reached",
        hints=("moe.moe_router_num_groups=null", "moe.moe_router_group_topk=null"),
    )


def _set_for_nothing(subject: Subject) -> Finding | None:
    """The MoE keys that a dense model does not read and that are not at their defaults."""
    moe, plain = subject.config.moe, MoeConfig()
    idle = {name: getattr(plain, name) for name in vars(moe) if getattr(moe, name) != getattr(plain, name)}
    if not idle:
        return None
    return Finding(
        found=f"set ({', '.join(idle)})",
        wanted="nothing",
        hints=tuple(f"moe.{name}={show(value)}" for name, value in idle.items()),
    )


_MCORE = "megatron-core"
NO_AUX_LOSS = where(
    _MCORE,
    text="moe_router_load_balancing_type is none, sinkhorn or quantile_balancing",
    test=lambda c: (
        c.moe.moe_router_load_balancing_type
        in (LoadBalancing.none, LoadBalancing.sinkhorn, LoadBalancing.quantile_balancing)
    ),
)
CAPACITY = where(
    _MCORE, text="moe_expert_capacity_factor is set", test=lambda c: c.moe.moe_expert_capacity_factor is not None
)
NO_CAPACITY = where(
    _MCORE, text="moe_expert_capacity_factor is null", test=lambda c: c.moe.moe_expert_capacity_factor is None
)
NO_FP8 = where(_MCORE, text="precision.fp8 is null", test=lambda c: c.precision.fp8 is None)
NO_BIAS = where(
    _MCORE,
    text="moe_router_enable_expert_bias is false",
    test=lambda c: c.moe.moe_router_enable_expert_bias is False,
)
GROUPS = Condition(
    who=_MCORE,
    text="moe_router_group_topk is set and the model has experts",
    test=lambda s: s.config.moe.moe_router_group_topk is not None and has_experts(s),
)
NO_GROUPS = where(_MCORE, text="moe_router_group_topk is null", test=lambda c: c.moe.moe_router_group_topk is None)
ORDINARY_DENSE = Condition(
    who="a dense model",
    text="the model is dense, and the zero-KL recipe (which sets keys for either kind) is not in force",
    test=lambda s: is_dense(s) and not s.config.zero_kl.required,
)
EXPERTS = Condition(who="parity", text="the model has experts", test=has_experts)

ROUTER_ROWS: tuple[Requirement, ...] = (
    Requirement(
        code="MO020",
        key="moe.moe_router_dtype",
        want=OneOf(("fp32", "fp64", None)),
        why="any other text is read as the model's own dtype, without a word",
        source=_ROUTER,
    ),
    Requirement(
        code="MO021",
        key="moe.moe_aux_loss_coeff",
        want=OneOf((None, 0.0)),
        when=NO_AUX_LOSS,
        why="no auxiliary loss is computed; sinkhorn and quantile balancing assert 0",
        source=_ROUTER,
        reads=("moe.moe_router_load_balancing_type",),
    ),
    Requirement(
        code="MO022",
        key="moe.moe_router_bias_update_rate",
        want=OneOf((None, 0.0)),
        when=NO_BIAS,
        why="there is no expert bias to move",
        source="megatron-core 0.19.2 distributed/finalize_model_grads.py",
        reads=("moe.moe_router_enable_expert_bias",),
    ),
    Requirement(
        code="MO023",
        key="moe.moe_router_num_groups",
        want=Check("a divisor of the experts, at least moe_router_group_topk", _groups_fit),
        when=GROUPS,
        why="group-limited routing ranks whole groups of experts",
        source=_CONFIG,
        reads=("moe.moe_router_group_topk",),
    ),
    *unread(
        {"MO024": "moe.moe_router_num_groups"},
        when=NO_GROUPS,
        why="groups limit the routing only where moe_router_group_topk is set",
        source="megatron-core 0.19.2 transformer/moe/moe_utils.py, topk_routing_with_score_function",
        reads=("moe.moe_router_group_topk",),
    ),
    Requirement(
        code="MO025",
        key="moe.moe_router_load_balancing_type",
        want=OneOf(
            (
                LoadBalancing.none,
                LoadBalancing.aux_loss,
                LoadBalancing.seq_aux_loss,
                LoadBalancing.global_aux_loss,
                None,
            )
        ),
        when=CAPACITY,
        why="tokens are dropped only beside an auxiliary loss, or none",
        source=_CONFIG,
        reads=("moe.moe_expert_capacity_factor",),
    ),
    Requirement(
        code="MO026",
        key="moe.moe_pad_expert_input_to_capacity",
        want=OneOf((None, False)),
        when=NO_CAPACITY,
        why="without moe_expert_capacity_factor there is no capacity to pad to",
        source=_CONFIG,
        reads=("moe.moe_expert_capacity_factor",),
    ),
    *(
        Requirement(
            code=code,
            key="moe.moe_router_padding_for_quantization",
            want=OneOf((None, False)),
            when=when,
            why=why,
            source=_CONFIG,
            reads=(read,),
        )
        for code, when, read, why in (
            ("MO027", NO_FP8, "precision.fp8", "it pads for FP8, which is off"),
            ("MO028", ALLGATHER, "moe.moe_token_dispatcher_type", "the allgather dispatcher does not support it"),
        )
    ),
)

MODEL_ROWS: tuple[Requirement, ...] = (
    Requirement(
        code="MO040",
        key="moe",
        want=Check("nothing", _set_for_nothing),
        when=ORDINARY_DENSE,
        severity=Severity.WARNING,
        why="a dense model has no experts: the settings are accepted and ignored",
        source="megatron_setup/tables.py",
        reads=tuple(f"moe.{name}" for name in vars(MoeConfig())),
    ),
    Requirement(
        code="MO041",
        key="model.peft.enabled",
        want=Equals(False),
        when=EXPERTS,
        severity=Severity.WARNING,
        why="all experts of a rank share one adapter, so the model depends on the expert-parallel size: no parity with "
        "an engine that holds them otherwise",
        source="megatron-bridge 0.6.2 peft/lora.py, share_expert_adapters",
    ),
)

REQUIREMENTS: tuple[Requirement, ...] = dispatcher.ROWS + ROUTER_ROWS + MODEL_ROWS

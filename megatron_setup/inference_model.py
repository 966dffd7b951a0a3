"""The second model: generation's own layout on training's ranks, filled by a refit before each generation.

Owns building it and moving weights into it with megatron-core's resharding. When it is needed is decided in
`second_model`; generating with it is elsewhere.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from megatron.core.inference.shards import build_inference_pg_collection
from megatron.core.resharding import swap_model_weights
from megatron.core.transformer.module import MegatronModule
from megatron.core.utils import unwrap_model

from launcher.patches import applied
from launcher.schema import RunConfig
from megatron_setup.late_gather import parameters_gathered
from megatron_setup.provider import finalize, read_back, set_fields
from megatron_setup.resharding_patches import EXPERTS
from megatron_setup.second_model import inference_fields, refit_method


def build_inference_model(config: RunConfig, *, snapshot: Any) -> MegatronModule:
    """The model of this rank in generation's layout, unwrapped, in evaluation mode, its weights not yet filled in.

    `snapshot` is a deep copy of training's provider from before `finalize()`, which turns a written pipeline layout
    into an object for training's stages and fills in sizes that were left open; it is not changed. The model has
    process groups of its own: Megatron's global ones stay training's. Nothing is drawn, so training's random states
    stay too. Peak memory: training's as it is, and a second copy of the weights at generation's share per rank.
    """
    fields = inference_fields(config)
    provider = copy.deepcopy(snapshot)
    set_fields(provider, fields=fields)
    finalize(provider, fields=fields)
    groups = build_inference_pg_collection(
        torch.distributed.get_world_size(),
        tp_size=provider.tensor_model_parallel_size,
        pp_size=provider.pipeline_model_parallel_size,
        cp_size=1,
        ep_size=provider.expert_model_parallel_size,
        expt_tp_size=provider.expert_tensor_parallel_size,
    )
    (model,) = unwrap_model(provider.provide_distributed_model(wrap_with_ddp=False, pg_collection=groups))
    read_back(provider, fields=fields)
    return model.requires_grad_(False).eval()


def refit(training_model: list[MegatronModule], *, inference_model: MegatronModule, config: RunConfig) -> None:
    """Copy every weight and persistent buffer of training into the second model, resharded, bit for bit. Collective.

    Without the last line Transformer Engine would go on with the FP8 copies that it keeps of the old weights: exact at
    the first refit and wrong after each step. A layer's extra state does not travel: it is empty but for the amax
    history of delayed FP8 scaling, which the rules refuse here.
    """
    source: Any = training_model  # upstream's annotation says one model, it unwraps a list
    target: Any = inference_model
    with parameters_gathered(training_model), applied(EXPERTS):
        swap_model_weights(source, target, refit_method(config).value)
    inference_model.set_is_first_microbatch()

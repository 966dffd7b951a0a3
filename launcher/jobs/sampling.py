"""The prompts of a measurement, and their responses: sampled on training's own model, or on generation's after a refit.

Owns who samples what. Sampling itself is `zero_kl.generate`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from megatron.bridge.inference.text_generation import HFTokenizerAdapter
from megatron.core import parallel_state
from megatron.core.utils import unwrap_model

from launcher.errors import ConfigError
from megatron_setup.apply import Setup
from megatron_setup.inference_model import refit
from zero_kl.generate import Sampled, generate
from zero_kl.prompts import random_prompts, read_prompts

OnFinished = Callable[[int, int], None]


def read_texts(setup: Setup, *, max_new_tokens: int) -> list[list[int]]:
    """The prompts of `job.prompts`, read once: no measurement sees another file. Empty where prompts are random."""
    config = setup.config
    if config.job.prompts is None:
        return []
    return read_prompts(
        Path(config.job.prompts),
        tokenizer=setup.finished.tokenizer,
        seq_length=config.model.seq_length,
        max_new_tokens=max_new_tokens,
    )


def prompts_of_step(texts: list[list[int]], *, setup: Setup, step: int) -> list[list[int]]:
    """This rank's prompts. Data-parallel ranks split them, except where they share experts.

    Ranks that share experts meet in every MoE layer, so their engines must take the same number of steps: they sample
    the same prompts, each with its own random numbers.
    """
    job = setup.config.job
    prompts = texts or random_prompts(
        job.num_prompts,
        min_tokens=job.min_prompt_tokens,
        max_tokens=job.max_prompt_tokens,
        vocab_size=len(setup.finished.tokenizer),
        seed=job.seed + step,
    )
    replicas = setup.finished.data_parallel_size
    if replicas == 1 or setup.config.parallelism.expert_model_parallel_size > 1:
        return prompts
    if len(prompts) % replicas:
        raise ConfigError(
            f"error: {len(prompts)} prompts do not split over {replicas} data-parallel ranks\n"
            "  why:    every rank must take part in every gradient reduction with the same number of micro-batches"
        )
    return prompts[parallel_state.get_data_parallel_rank() :: replicas]


def sample(setup: Setup, *, prompts: Sequence[Sequence[int]], on_finished: OnFinished) -> list[Sampled]:
    """A response to each of this rank's prompts, in their order."""
    if setup.inference_model is not None:
        return _on_second_model(setup, prompts=prompts, on_finished=on_finished)
    return _generate(unwrap_model(setup.model)[0], setup=setup, prompts=prompts, on_finished=on_finished)


def _generate(model: Any, *, setup: Setup, prompts: Sequence[Sequence[int]], on_finished: OnFinished) -> list[Sampled]:
    return generate(
        model,
        prompts=prompts,
        tokenizer=HFTokenizerAdapter(setup.finished.tokenizer),
        config=setup.config,
        on_finished=on_finished,
    )


def _on_second_model(setup: Setup, *, prompts: Sequence[Sequence[int]], on_finished: OnFinished) -> list[Sampled]:
    """Refit, then deal all replicas' requests to generation's replicas, whose number may be another one.

    Generation's replicas that share experts all sample all requests, for the reason above; the first one's count.
    """
    assert setup.inference_model is not None, "the set-up made no model for generation"
    model: Any = setup.inference_model
    refit(setup.model, inference_model=model, config=setup.config)
    replica, groups = parallel_state.get_data_parallel_rank(), model.pg_collection
    requests = _over_replicas(prompts, replica=replica)
    together = groups.ep.size() > 1
    mine = range(len(requests)) if together else range(groups.dp.rank(), len(requests), groups.dp.size())
    sampled = _generate(model, setup=setup, prompts=[requests[i] for i in mine], on_finished=on_finished)
    shares: list[Any] = [None] * setup.world_size
    torch.distributed.all_gather_object(shares, dict(zip(mine, sampled, strict=True)))
    responses: dict[int, Sampled] = {}
    for share in reversed(shares):  # the lowest rank's count, on every rank alike
        responses |= share
    first = replica * len(prompts)
    return [responses[first + i] for i in range(len(prompts))]


def _over_replicas(prompts: Sequence[Sequence[int]], *, replica: int) -> list[Sequence[int]]:
    """All replicas' prompts, the first replica's first, the same list on every rank."""
    shares: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(shares, (replica, prompts))
    by_replica: dict[int, Sequence[Sequence[int]]] = dict(shares)
    return [prompt for _, share in sorted(by_replica.items()) for prompt in share]

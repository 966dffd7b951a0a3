"""The job `mismatch`: sample, score the same tokens with the training forward, compare bits; train; again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import torch
from megatron.bridge.inference.text_generation import HFTokenizerAdapter
from megatron.core import parallel_state

from launcher.files import read_json
from launcher.jobs.sampling import prompts_of_step, read_texts, sample
from launcher.paths import AttemptPaths
from launcher.records import read_rank
from launcher.schema import RunConfig
from launcher.schema.layout import derive_layout
from megatron_setup.apply import Setup, finish_step
from megatron_setup.hf_folder import count_parameters
from megatron_setup.late_gather import parameters_gathered
from zero_kl.batches import row_multiple
from zero_kl.claims import Subjects, check_claims
from zero_kl.evidence import Claim, Search
from zero_kl.generate import Sampled
from zero_kl.measure import Response, compare
from zero_kl.report import write_report
from zero_kl.score import is_first_of_its_replica, is_scoring_rank, policy_gradient_step, score
from zero_kl.search import Runs, search
from zero_kl.verdict import Measurement, Mismatch, Report, Throughput


@dataclass(frozen=True, kw_only=True)
class Round:
    """One measurement on this rank: what was sampled, and what it took."""

    prompts: list[list[int]]
    sampled: list[Sampled]
    sequences: list[list[int]]
    """Prompt and response of each request."""

    training: list[torch.Tensor]
    generation_s: float
    training_s: float


def measure_mismatch(setup: Setup, *, paths: AttemptPaths) -> None:
    """Measure before the first and after each optimizer step; rank 0 writes the report."""
    texts = read_texts(setup, max_new_tokens=setup.config.generation.max_new_tokens)
    measurements: list[Measurement] = []
    throughput: list[Throughput] = []
    found: Search | None = None
    claims: tuple[Claim, ...] = ()
    for step in range(setup.saves.step, setup.config.job.num_steps + 1):
        with parameters_gathered(setup.model):  # at once: a graph's capture skips the hooks that would
            current = _measure(setup, texts=texts, step=step)
            measurement, speed = _gather(current, step=step)
            if found is None and measurement.first_mismatch is not None:
                found = _search(setup, data=current, mismatch=measurement.first_mismatch)
            if setup.config.job.claims and step == setup.config.job.num_steps:
                claims = _claims(setup, data=current)
        if step < setup.config.job.num_steps:
            seconds = _train(setup, data=current, step=step)
            speed = replace(speed, update_tokens=speed.training_tokens, update_s=seconds)
        measurements.append(measurement)
        throughput.append(speed)
    if setup.rank == 0:
        report = _report(setup, paths=paths, measurements=measurements, throughput=throughput)
        write_report(replace(report, search=found, claims=claims), folder=paths.root)


def _measure(setup: Setup, *, texts: list[list[int]], step: int) -> Round:
    prompts = prompts_of_step(texts, setup=setup, step=step)
    started = time.perf_counter()
    sampled = sample(setup, prompts=prompts, on_finished=_shown(setup, stage=f"step {step}: generate", unit="requests"))
    generated = time.perf_counter()
    sequences = [[*p, *s.tokens] for p, s in zip(prompts, sampled, strict=True)]
    training = score(
        setup.model,
        sequences=sequences,
        micro_batch_size=setup.config.performance.micro_batch_size,
        row_multiple=row_multiple(setup.config),
        on_batch=_shown(setup, stage=f"step {step}: score", unit="sequences"),
    )
    return Round(
        prompts=prompts,
        sampled=sampled,
        sequences=sequences,
        training=training,
        generation_s=generated - started,
        training_s=time.perf_counter() - generated,
    )


def _shown(setup: Setup, *, stage: str, unit: str) -> Callable[[int, int], None]:
    return lambda done, total: setup.progress(stage, done=done, total=total, unit=unit)


def _gather(current: Round, *, step: int) -> tuple[Measurement, Throughput]:
    """All ranks' responses compared as one; every rank gets the figures. Time is the slowest rank's."""
    mine = _responses(current) if is_scoring_rank() and is_first_of_its_replica() else []
    tokens = sum(len(s) for s in current.sequences) if mine else 0
    share = (mine, tokens, current.generation_s, current.training_s)
    shares: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(shares, share)
    responses: list[Response] = [r for part in shares for r in part[0]]
    return compare(responses, step=step), Throughput(
        step=step,
        generation_tokens=sum(len(r.tokens) for r in responses),
        generation_s=max(part[2] for part in shares),
        training_tokens=sum(part[1] for part in shares),
        training_s=max(part[3] for part in shares),
    )


def _responses(current: Round) -> list[Response]:
    first = parallel_state.get_data_parallel_rank() * len(current.prompts)
    return [
        Response(
            request=first + i,
            prompt_length=len(prompt),
            tokens=sampled.tokens,
            generation=sampled.logprobs,
            training=training[len(prompt) - 1 :],
        )
        for i, (prompt, sampled, training) in enumerate(
            zip(current.prompts, current.sampled, current.training, strict=True)
        )
    ]


def _search(setup: Setup, *, data: Round, mismatch: Mismatch) -> Search:
    """The smallest failing case of this measurement, searched by every rank with the requests of the failing one's."""
    if setup.inference_model is not None:
        return Search(step=mismatch.step, says="not searched: generation ran on a second model, in a layout of its own")
    setup.progress("search", done=0, total=1)
    share = (parallel_state.get_data_parallel_rank(), data.prompts, data.sequences)
    shares: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(shares, share)
    owner, failing = divmod(mismatch.request, len(data.prompts))
    _, prompts, sequences = next(part for part in shares if part[0] == owner)
    runs = Runs(model=setup.model, config=setup.config, tokenizer=HFTokenizerAdapter(setup.finished.tokenizer))
    found = search(runs, prompts=prompts, sequences=sequences, failing=failing)
    setup.progress("search", done=1, total=1)
    return replace(found, step=mismatch.step)


def _claims(setup: Setup, *, data: Round) -> tuple[Claim, ...]:
    subjects = Subjects(
        model=setup.model,
        config=setup.config,
        tokenizer=HFTokenizerAdapter(setup.finished.tokenizer),
        prompts=data.prompts,
        sequences=data.sequences,
    )
    return check_claims(subjects, on_sweep=_shown(setup, stage="claims", unit="sweeps"))


def _train(setup: Setup, *, data: Round, step: int) -> float:
    """One policy-gradient step on what was sampled; returns its seconds on this rank.

    Advantages are drawn: no reward is needed to move weights.
    """
    shown = _shown(setup, stage=f"step {step + 1}: train", unit="steps")
    shown(0, 1)
    generator = random.Random(setup.config.job.seed + step)
    started = time.perf_counter()
    policy_gradient_step(
        setup.model,
        optimizer=setup.optimizer,
        sequences=data.sequences,
        prompt_lengths=[len(p) for p in data.prompts],
        advantages=[generator.gauss(0.0, 1.0) for _ in data.prompts],
        micro_batch_size=setup.config.performance.micro_batch_size,
        row_multiple=row_multiple(setup.config),
    )
    seconds = time.perf_counter() - started
    finish_step(setup)
    shown(1, 1)
    return seconds


def _report(
    setup: Setup,
    *,
    paths: AttemptPaths,
    measurements: list[Measurement],
    throughput: list[Throughput],
) -> Report:
    config = setup.config
    return Report(
        required=config.zero_kl.required,
        platform=config.platform.kind,
        mode=config.zero_kl.backend,
        model=config.model.name,
        num_parameters=count_parameters(setup.source.hf_folder),
        layout=_layout(config),
        measurements=tuple(measurements),
        throughput=tuple(throughput),
        stages_s={name: stage.seconds for name, stage in setup.stages.items()},
        config_yaml=paths.resolved.read_text(),
        overrides=tuple(paths.overrides.read_text().splitlines()),
        versions=read_json(paths.versions),
        git=read_json(paths.git),
        run_folder=str(paths.root),
        started=_began(paths).isoformat(timespec="milliseconds"),
        finished=datetime.now().astimezone().isoformat(timespec="milliseconds"),
    )


def _layout(config: RunConfig) -> str:
    layout, shared = derive_layout(config), config.cluster.ranks_per_gpu
    return (
        f"TP {layout.tensor_model_parallel_size}, PP {layout.pipeline_model_parallel_size}, "
        f"EP {layout.expert_model_parallel_size}, DP {layout.data_parallel_size}"
        f"{' with sequence parallelism' if config.parallelism.sequence_parallel else ''}"
        f"{f'; {shared} ranks share a GPU, so its speeds say nothing' if shared > 1 else ''}"
    )


def _began(paths: AttemptPaths) -> datetime:
    """This rank's start, before the import of Megatron and the set-up whose stages the report has."""
    record = read_rank(paths, rank=0)
    assert record is not None, "a rank's first act is its record"
    return datetime.fromtimestamp(record.time).astimezone()

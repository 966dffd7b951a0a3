"""The arithmetic behind the layout rules: each check looks at one wish and says what was found, with its sum.

Owns the sums. Owns neither when a rule applies, nor why, nor what to type instead: that is `megatron_setup.parallelism`
and `megatron_setup.nearest_layout`. Every size is at least 1 here.
"""

import math
from collections.abc import Callable

from launcher.requirement import Finding, Subject, show
from launcher.schema import Architecture, RunConfig
from launcher.schema.layout import Layout, derive_layout
from megatron_setup.layout.stages import deal, written_problem

Sum = Callable[[Subject], Finding | None]


def shape_of(subject: Subject) -> Architecture:
    """The model's shape; a row that calls this applies only where it is known."""
    assert subject.architecture is not None, "this row lacks the condition that the model's shape is known"
    return subject.architecture


def divides(key: str, *, size: Callable[[Architecture], int | None], what: str) -> Sum:
    """The value at `key` divides a size of the model."""

    def check(subject: Subject) -> Finding | None:
        ranks, total = subject.value(key), size(shape_of(subject))
        assert total is not None, f"this row lacks the condition that the model has a {what}"
        if total % ranks == 0:
            return None
        return Finding(
            found=show(ranks),
            wanted=f"a divisor of {total}",
            arithmetic=f"{what} {total} / {ranks} leaves {total % ranks}",
        )

    return check


def qkv_size(shape: Architecture) -> int:
    """Rows of the matrix that makes queries, keys and values."""
    return (shape.num_attention_heads + 2 * shape.num_query_groups) * shape.kv_channels


def query_groups(subject: Subject) -> Finding | None:
    """TP divides the query groups, or they divide TP (then ranks share a group)."""
    ranks, groups = subject.config.parallelism.tensor_model_parallel_size, shape_of(subject).num_query_groups
    if groups % ranks == 0 or ranks % groups == 0:
        return None
    return Finding(
        found=show(ranks),
        wanted=f"a divisor or a multiple of {groups}",
        arithmetic=f"{groups} query groups and {ranks} ranks: neither divides the other",
    )


def expert_matrices(subject: Subject) -> Finding | None:
    """ETP, filled in where null, divides the experts' hidden size."""
    layout, total = derive_layout(subject.config), shape_of(subject).moe_ffn_hidden_size
    assert total is not None, "this row lacks the condition that the model has experts"
    ranks = layout.expert_tensor_parallel_size
    if total % ranks == 0:
        return None
    return Finding(
        found=show(subject.config.parallelism.expert_tensor_parallel_size),
        wanted=f"a divisor of {total}",
        arithmetic=f"{_filled_in(subject.config, layout)}moe_ffn_hidden_size {total} / {ranks} leaves {total % ranks}",
    )


def world_of_the_model(subject: Subject) -> Finding | None:
    """TP x CP x PP divides the world."""
    layout = derive_layout(subject.config)
    rest = layout.world_size % layout.model_size
    if rest == 0:
        return None
    return Finding(
        found=show(layout.world_size),
        wanted=f"a multiple of {layout.model_size}",
        arithmetic=f"world size {layout.world_size} / ({_model_sum(layout)}) leaves {rest}",
    )


def world_of_the_experts(subject: Subject) -> Finding | None:
    """ETP x EP x PP divides the world; silent where it divides TP x CP x PP, whose own rule then says it all."""
    layout = derive_layout(subject.config)
    size = layout.expert_model_size
    if layout.world_size % size == 0 or layout.model_size % size == 0:
        return None
    total = (
        f"expert tensor {layout.expert_tensor_parallel_size} x expert {layout.expert_model_parallel_size} "
        f"x pipeline {layout.pipeline_model_parallel_size} = {size}"
    )
    return Finding(
        found=show(layout.expert_model_parallel_size),
        wanted="expert tensor x expert x pipeline to divide the world size",
        arithmetic=f"{_filled_in(subject.config, layout)}{total} does not divide world size {layout.world_size}",
    )


def replicas(subject: Subject) -> Finding | None:
    """DP is what the processes leave; only where both are set and the world itself fits."""
    layout, asked = derive_layout(subject.config), subject.config.parallelism.data_parallel_size
    if asked == layout.data_parallel_size or layout.world_size % layout.model_size:
        return None
    return Finding(
        found=show(asked),
        wanted=show(layout.data_parallel_size),
        arithmetic=f"num_processes {layout.world_size} / ({_model_sum(layout)}) = {layout.data_parallel_size}",
    )


def layers_are_dealt(subject: Subject) -> Finding | None:
    """Every pipeline stage gets its layers, evenly or with the ends that are asked for."""
    parallelism = subject.config.parallelism
    problem = deal(parallelism, num_layers=shape_of(subject).num_layers).problem
    if not problem:
        return None
    return Finding(
        found=show(parallelism.pipeline_model_parallel_size), wanted="stages of whole layers", arithmetic=problem
    )


def chunks_are_whole(subject: Subject) -> Finding | None:
    """VPP divides every stage's layers; only where the layers could be dealt."""
    parallelism = subject.config.parallelism
    dealt = deal(parallelism, num_layers=shape_of(subject).num_layers)
    virtual = parallelism.virtual_pipeline_model_parallel_size
    assert virtual is not None, "this row lacks the condition that the schedule is interleaved"
    if dealt.problem or all(layers % virtual == 0 for layers in dealt.layers):
        return None
    left = [f"a stage of {n} layers / {virtual} leaves {n % virtual}" for n in sorted(set(dealt.layers)) if n % virtual]
    return Finding(found=show(virtual), wanted="a divisor of every stage's layers", arithmetic=", ".join(left))


def stages_to_interleave(subject: Subject) -> Finding | None:
    """There is more than one stage."""
    stages = subject.config.parallelism.pipeline_model_parallel_size
    return Finding(found=show(stages), wanted="at least 2 beside a virtual size") if stages < 2 else None


def sends_when_interleaved(subject: Subject) -> Finding | None:
    """Overlapped sends are not batched (null is megatron-core's default, batched), and two stages overlap."""
    parallelism = subject.config.parallelism
    overlapped, batched = parallelism.overlap_p2p_comm is True, parallelism.batch_p2p_comm is not False
    stages = parallelism.pipeline_model_parallel_size
    if not (overlapped and batched) and (overlapped or stages > 2):
        return None
    return Finding(
        found=f"{show(parallelism.overlap_p2p_comm)} with batch_p2p_comm {show(parallelism.batch_p2p_comm)}",
        wanted="true with batch_p2p_comm false",
        arithmetic=f"pipeline {stages}, virtual {parallelism.virtual_pipeline_model_parallel_size}",
    )


def sends_when_plain(subject: Subject) -> Finding | None:
    """Sends are not overlapped."""
    overlapped = subject.config.parallelism.overlap_p2p_comm
    return Finding(found="true", wanted="false beside a null virtual size") if overlapped else None


def group_fills_the_pipeline(subject: Subject) -> Finding | None:
    """A group of microbatches has at least one for each stage (null is exactly that)."""
    parallelism = subject.config.parallelism
    group, stages = parallelism.microbatch_group_size_per_vp_stage, parallelism.pipeline_model_parallel_size
    if group is None or group >= stages:
        return None
    return Finding(found=show(group), wanted=f"at least pipeline_model_parallel_size = {stages}")


def layout_is_written(subject: Subject) -> Finding | None:
    """The written pipeline layout has the stages and the layers of the model."""
    parallelism = subject.config.parallelism
    written = parallelism.pipeline_model_parallel_layout
    assert written is not None, "this row lacks the condition that the layout is written"
    problem = written_problem(
        written,
        pipeline=parallelism.pipeline_model_parallel_size,
        virtual=parallelism.virtual_pipeline_model_parallel_size,
        num_layers=None if subject.architecture is None else subject.architecture.num_layers,
        mtp_num_layers=subject.config.mtp.mtp_num_layers,
    )
    return Finding(found=written, wanted="every stage and layer once", arithmetic=problem) if problem else None


def sequence_multiple(config: RunConfig) -> int:
    """What a sequence's length must be a multiple of: CP cuts it into 2 x CP pieces, SP each rank's part into TP."""
    parallelism = config.parallelism
    context, tensor = parallelism.context_parallel_size, parallelism.tensor_model_parallel_size
    return math.lcm(2 * context if context > 1 else 1, context * tensor if parallelism.sequence_parallel else 1)


def sequence_is_cut(subject: Subject) -> Finding | None:
    """CP and SP cut a sequence into equal parts."""
    length, multiple = subject.config.model.seq_length, sequence_multiple(subject.config)
    if length % multiple == 0:
        return None
    parallelism = subject.config.parallelism
    context, parts = parallelism.context_parallel_size, list[str]()
    if context > 1:
        parts.append(f"2 x context {context} = {2 * context}")
    if parallelism.sequence_parallel:
        tensor = parallelism.tensor_model_parallel_size
        parts.append(f"context {context} x tensor {tensor} = {context * tensor}")
    return Finding(
        found=show(length),
        wanted=f"a multiple of {multiple}",
        arithmetic=f"{' and '.join(parts)}; {length} / {multiple} leaves {length % multiple}",
    )


def sequence_was_trained(subject: Subject) -> Finding | None:
    """The sequence is no longer than the positions the model knows."""
    length, limit = subject.config.model.seq_length, shape_of(subject).max_position_embeddings
    if length <= limit:
        return None
    return Finding(found=show(length), wanted=f"at most max_position_embeddings = {limit}")


def response_fits(subject: Subject) -> Finding | None:
    """The longest random prompt, or one token of a prompt from a file, and the response fit the sequence."""
    job, new, length = subject.config.job, subject.config.generation.max_new_tokens, subject.config.model.seq_length
    prompt = job.max_prompt_tokens if job.prompts is None else 1
    if prompt + new <= length:
        return None
    return Finding(
        found=show(length),
        wanted=f"at least {prompt + new}",
        arithmetic=f"prompt {prompt} + new {new} = {prompt + new}",
    )


def prompts_have_a_range(subject: Subject) -> Finding | None:
    """The shortest random prompt is no longer than the longest."""
    job = subject.config.job
    if job.min_prompt_tokens <= job.max_prompt_tokens:
        return None
    return Finding(found=show(job.min_prompt_tokens), wanted=f"at most max_prompt_tokens = {job.max_prompt_tokens}")


def requests_are_shared(subject: Subject) -> Finding | None:
    """TP divides the engine's requests in flight."""
    tensor = subject.config.parallelism.tensor_model_parallel_size
    return _multiple(subject.config.generation.max_requests, unit=tensor, total=f"tensor {tensor}")


def prompts_are_shared(subject: Subject) -> Finding | None:
    """DP divides the random prompts."""
    ranks = derive_layout(subject.config).data_parallel_size
    return _multiple(subject.config.job.num_prompts, unit=ranks, total=f"data {ranks}")


def batches_are_whole(subject: Subject) -> Finding | None:
    """A step is a whole number of micro-batches on every replica."""
    performance, ranks = subject.config.performance, derive_layout(subject.config).data_parallel_size
    assert performance.global_batch_size is not None, "this row lacks the condition that the size is set"
    unit = performance.micro_batch_size * ranks
    total = f"(micro-batch {performance.micro_batch_size} x data {ranks} = {unit})"
    return _multiple(performance.global_batch_size, unit=unit, total=total)


def _multiple(found: int, *, unit: int, total: str) -> Finding | None:
    if unit == 0 or found % unit == 0:  # 0 replicas: the world is too small, and its own rule says so
        return None
    return Finding(
        found=show(found), wanted=f"a multiple of {unit}", arithmetic=f"{found} / {total} leaves {found % unit}"
    )


def _model_sum(layout: Layout) -> str:
    return (
        f"tensor {layout.tensor_model_parallel_size} x context {layout.context_parallel_size} "
        f"x pipeline {layout.pipeline_model_parallel_size} = {layout.model_size}"
    )


def _filled_in(config: RunConfig, layout: Layout) -> str:
    """Who filled in ETP, where it was left null."""
    if config.parallelism.expert_tensor_parallel_size is not None:
        return ""
    if config.parallelism.expert_model_parallel_size > 1:
        return "expert_tensor_parallel_size is null, so Megatron-Bridge takes 1: "
    tensor = layout.expert_tensor_parallel_size
    return f"expert_tensor_parallel_size is null, so megatron-core takes tensor_model_parallel_size = {tensor}: "

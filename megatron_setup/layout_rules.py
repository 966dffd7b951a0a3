"""The rules of parallel layouts as rows, without hints; `megatron_setup.parallelism` adds those.

Owns code, condition, reason and source of each rule. The sums are in `megatron_setup.layout_checks`. `reads` names every
layout key a row looks at, its condition included: the search for a nearest layout goes by it.
"""

from collections.abc import Callable

from launcher.requirement import (
    KNOWN_ARCHITECTURE,
    Between,
    Check,
    Condition,
    Equals,
    Requirement,
    Severity,
    Subject,
)
from launcher.schema import Architecture, JobKind, ParallelismConfig
from launcher.schema.layout import derive_layout
from megatron_setup import layout_checks as sums
from megatron_setup.layout_checks import divides
from megatron_setup.stages import is_uneven

TENSOR = "parallelism.tensor_model_parallel_size"
PIPELINE = "parallelism.pipeline_model_parallel_size"
VIRTUAL = "parallelism.virtual_pipeline_model_parallel_size"
CONTEXT = "parallelism.context_parallel_size"
EXPERT = "parallelism.expert_model_parallel_size"
EXPERT_TENSOR = "parallelism.expert_tensor_parallel_size"
DATA = "parallelism.data_parallel_size"
SEQUENCE = "parallelism.sequence_parallel"
FIRST = "parallelism.num_layers_in_first_pipeline_stage"
LAST = "parallelism.num_layers_in_last_pipeline_stage"
EMBEDDING = "parallelism.account_for_embedding_in_pipeline_split"
LOSS = "parallelism.account_for_loss_in_pipeline_split"
WRITTEN = "parallelism.pipeline_model_parallel_layout"
GROUP = "parallelism.microbatch_group_size_per_vp_stage"
OVERLAP = "parallelism.overlap_p2p_comm"
BATCH = "parallelism.batch_p2p_comm"
PROCESSES = "cluster.num_processes"
MICRO = "performance.micro_batch_size"
GLOBAL = "performance.global_batch_size"
LENGTH = "model.seq_length"
PROMPTS = "job.num_prompts"
MIN_PROMPT = "job.min_prompt_tokens"
MAX_PROMPT = "job.max_prompt_tokens"
NEW = "generation.max_new_tokens"
REQUESTS = "generation.max_requests"

_GROUPS = "megatron-core 0.19.2 parallel_state.py"
_CONFIG = "megatron-core 0.19.2 transformer/transformer_config.py"
_SCHEDULES = "megatron-core 0.19.2 pipeline_parallel/schedules.py"
_MICROBATCHES = "megatron-core 0.19.2 num_microbatches_calculator.py"
_CONTEXT = "megatron-core 0.19.2 inference/contexts/dynamic_context.py"
_PROVIDER = "megatron-bridge 0.6.2 models/gpt_provider.py"
_JOB = "launcher/jobs/mismatch.py"

_SIZES = (
    ("PL001", TENSOR, _GROUPS),
    ("PL002", PIPELINE, _GROUPS),
    ("PL003", VIRTUAL, _GROUPS),
    ("PL004", CONTEXT, _GROUPS),
    ("PL005", EXPERT, _GROUPS),
    ("PL006", EXPERT_TENSOR, _GROUPS),
    ("PL007", DATA, _GROUPS),
    ("PL008", PROCESSES, _GROUPS),
    ("PL009", FIRST, _CONFIG),
    ("PL010", LAST, _CONFIG),
    ("PL011", GROUP, _SCHEDULES),
    ("PL012", MICRO, _MICROBATCHES),
    ("PL013", GLOBAL, _MICROBATCHES),
    ("PL014", LENGTH, _PROVIDER),
    ("PL015", PROMPTS, _JOB),
    ("PL016", MIN_PROMPT, _JOB),
    ("PL017", MAX_PROMPT, _JOB),
    ("PL018", NEW, _JOB),
    ("PL019", REQUESTS, _CONTEXT),
)
SIZES = tuple(key for _, key, _ in _SIZES)


def _sized(subject: Subject) -> bool:
    return all((value := subject.value(key)) is None or value >= 1 for key in SIZES)


def _when(text: str, test: Callable[[ParallelismConfig], bool]) -> Condition:
    return Condition(who="", text=text, test=lambda subject: test(subject.config.parallelism))


def _model(text: str, test: Callable[[Architecture], bool]) -> Condition:
    return KNOWN_ARCHITECTURE & Condition(who="", text=text, test=lambda subject: test(sums.shape_of(subject)))


def _needed_by(who: str) -> Condition:
    return Condition(who=who, text="every size is at least 1", test=_sized)


MCORE = _needed_by("megatron-core")
BRIDGE = _needed_by("Megatron-Bridge")
_MISMATCH = Condition(who="", text="job.kind is mismatch", test=lambda s: s.config.job.kind is JobKind.mismatch)
ENGINE = _needed_by("Megatron's engine") & _MISMATCH
JOB = _needed_by("the job") & _MISMATCH

DENSE = _model("the model is dense", lambda shape: shape.num_moe_experts is None)
MOE = _model("the model has experts", lambda shape: shape.num_moe_experts is not None)
INTERLEAVED = _when("the schedule is interleaved", lambda p: p.virtual_pipeline_model_parallel_size is not None)
PLAIN = _when("the schedule is not interleaved", lambda p: p.virtual_pipeline_model_parallel_size is None)
PIPELINED = _when("the pipeline has stages", lambda p: p.pipeline_model_parallel_size > 1)
DEALT = _when("the pipeline layout is not written out", lambda p: p.pipeline_model_parallel_layout is None)
SPELLED = _when("the pipeline layout is written out", lambda p: p.pipeline_model_parallel_layout is not None)
UNEVEN = _when("the first or last stage has its own size", is_uneven)
SHARDED = _when("the tensor-parallel size is over 1", lambda p: p.tensor_model_parallel_size > 1)
SPLIT = _when("sequences are split", lambda p: p.sequence_parallel)


def _is_unpadded(subject: Subject) -> bool:
    model = subject.config.model
    return model.make_vocab_size_divisible_by is None and model.model_overrides.get("should_pad_vocab") is not True


UNPADDED = Condition(who="", text="the vocabulary is not padded", test=_is_unpadded)

_SIZE_ROWS = tuple(
    Requirement(
        code=code,
        key=key,
        want=Between(low=1),
        why="it counts something that must exist; where it may be off, null is off and 0 is not",
        source=source,
    )
    for code, key, source in _SIZES
)

_WORLD_ROWS = (
    Requirement(
        code="PL020",
        key=PROCESSES,
        want=Check("a multiple of tensor x context x pipeline", sums.world_of_the_model),
        when=MCORE & Condition(who="", text="it is set", test=lambda s: s.config.cluster.num_processes is not None),
        why="every replica of the model takes that many ranks, and no rank may be left over",
        source=_GROUPS,
        reads=(TENSOR, CONTEXT, PIPELINE),
    ),
    Requirement(
        code="PL021",
        key=EXPERT,
        want=Check("expert tensor x expert x pipeline to divide the world size", sums.world_of_the_experts),
        when=MCORE,
        why="the experts have a grid of their own over the same ranks, of dense models too",
        source=_GROUPS,
        reads=(PROCESSES, DATA, TENSOR, CONTEXT, PIPELINE, EXPERT_TENSOR),
    ),
    Requirement(
        code="PL022",
        key=DATA,
        want=Check("num_processes / (tensor x context x pipeline)", sums.replicas),
        when=MCORE
        & Condition(who="", text="num_processes is set too", test=lambda s: s.config.cluster.num_processes is not None)
        & _when("it is set", lambda p: p.data_parallel_size is not None),
        why="megatron-core has no such setting: replicas are what the world leaves",
        source=_GROUPS,
        reads=(PROCESSES, TENSOR, CONTEXT, PIPELINE),
    ),
)

_MODEL_ROWS = (
    Requirement(
        code="PL030",
        key=TENSOR,
        want=Check("a divisor of the attention heads", divides(TENSOR, size=lambda a: a.num_attention_heads, what="attention heads")),
        when=MCORE & KNOWN_ARCHITECTURE,
        why="each rank computes whole heads",
        source=_CONFIG,
    ),
    Requirement(
        code="PL031",
        key=TENSOR,
        want=Check("a divisor or a multiple of the query groups", sums.query_groups),
        when=MCORE & KNOWN_ARCHITECTURE,
        why="a rank holds whole query groups, or whole ranks share one group",
        source=_CONFIG,
    ),
    Requirement(
        code="PL032",
        key=TENSOR,
        want=Check("a divisor of ffn_hidden_size", divides(TENSOR, size=lambda a: a.ffn_hidden_size, what="ffn_hidden_size")),
        when=MCORE & DENSE,
        why="the MLP's matrices are cut along ffn_hidden_size",
        source="megatron-core 0.19.2 tensor_parallel/layers.py",
    ),
    Requirement(
        code="PL033",
        key=TENSOR,
        want=Check("a divisor of the vocabulary", divides(TENSOR, size=lambda a: a.vocab_size, what="vocab_size")),
        when=BRIDGE & KNOWN_ARCHITECTURE & UNPADDED,
        why="the embedding is cut along the vocabulary; Bridge pads it only where should_pad_vocab is true",
        source=_PROVIDER,
        reads=("model.make_vocab_size_divisible_by", "model.model_overrides"),
    ),
    Requirement(
        code="PL040",
        key=EXPERT,
        want=Check("a divisor of the experts", divides(EXPERT, size=lambda a: a.num_moe_experts, what="experts")),
        when=MCORE & MOE,
        why="each rank holds whole experts, all the same number",
        source="megatron-core 0.19.2 transformer/moe/moe_layer.py",
    ),
    Requirement(
        code="PL041",
        key=EXPERT,
        want=Equals(1),
        when=MCORE & DENSE,
        why="a dense model has no experts to spread",
        source=_CONFIG,
    ),
    Requirement(
        code="PL042",
        key=EXPERT_TENSOR,
        want=Equals(None),
        when=MCORE & DENSE,
        why="a dense model has no experts to cut: the setting would be accepted and ignored",
        source=_GROUPS,
        severity=Severity.WARNING,
    ),
    Requirement(
        code="PL043",
        key=EXPERT_TENSOR,
        want=Check("a divisor of moe_ffn_hidden_size", sums.expert_matrices),
        when=MCORE & MOE,
        why="each expert's matrices are cut along moe_ffn_hidden_size",
        source="megatron-core 0.19.2 tensor_parallel/layers.py",
        reads=(TENSOR, EXPERT),
    ),
)

"""The keys that layout rules read, by short names, and the conditions under which a rule applies.

Owns the vocabulary of the rows in `ranks` and `schedule`, nothing else.
"""

from collections.abc import Callable
from operator import attrgetter

from launcher.requirement import KNOWN_ARCHITECTURE, Condition, Subject
from launcher.schema import Architecture, JobKind, ParallelismConfig
from megatron_setup.layout.stages import is_uneven
from megatron_setup.layout.sums import shape_of

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

SIZES = (
    TENSOR,
    PIPELINE,
    VIRTUAL,
    CONTEXT,
    EXPERT,
    EXPERT_TENSOR,
    DATA,
    PROCESSES,
    FIRST,
    LAST,
    GROUP,
    MICRO,
    GLOBAL,
    LENGTH,
    PROMPTS,
    MIN_PROMPT,
    MAX_PROMPT,
    NEW,
    REQUESTS,
)
"""Everything that counts: null where it may be off, otherwise at least 1."""


_sizes_of = attrgetter(*SIZES)


def _sized(subject: Subject) -> bool:
    return all(value is None or value >= 1 for value in _sizes_of(subject.config))


def when(text: str, *, test: Callable[[ParallelismConfig], bool]) -> Condition:
    """A further condition on the layout; joined to one that says who needs it."""
    return Condition(who="", text=text, test=lambda subject: test(subject.config.parallelism))


def shaped(text: str, *, test: Callable[[Architecture], bool]) -> Condition:
    """A further condition on the model's shape; false where the shape is not known."""
    return KNOWN_ARCHITECTURE & Condition(who="", text=text, test=lambda subject: test(shape_of(subject)))


def needed_by(who: str) -> Condition:
    """The condition that every sum rests on: 0 and less are reported by their own rows."""
    return Condition(who=who, text="every size is at least 1", test=_sized)


MCORE = needed_by("megatron-core")
BRIDGE = needed_by("Megatron-Bridge")
MISMATCH = Condition(who="", text="job.kind is mismatch", test=lambda s: s.config.job.kind is JobKind.mismatch)
TRAINS = Condition(
    who="",
    text="job.kind is mismatch or train",
    test=lambda s: s.config.job.kind in (JobKind.mismatch, JobKind.train),
)
ENGINE = needed_by("Megatron's engine") & MISMATCH
JOB = needed_by("the job") & MISMATCH

DENSE = shaped("the model is dense", test=lambda shape: shape.num_moe_experts is None)
MOE = shaped("the model has experts", test=lambda shape: shape.num_moe_experts is not None)
SHARED_GROUPS = KNOWN_ARCHITECTURE & Condition(
    who="",
    text="ranks share query groups",
    test=lambda s: s.config.parallelism.tensor_model_parallel_size > shape_of(s).num_query_groups,
)
SHARDED = when("the tensor-parallel size is over 1", test=lambda p: p.tensor_model_parallel_size > 1)
UNSHARDED = when("the tensor-parallel size is 1", test=lambda p: p.tensor_model_parallel_size == 1)
REPLICATED = when("data_parallel_size is set", test=lambda p: p.data_parallel_size is not None)
UNSPREAD = when("the experts are not spread", test=lambda p: p.expert_model_parallel_size == 1)
PIPELINED = when("the pipeline has several stages", test=lambda p: p.pipeline_model_parallel_size > 1)
INTERLEAVED = when("the schedule is interleaved", test=lambda p: p.virtual_pipeline_model_parallel_size is not None)
PLAIN = when("the schedule is not interleaved", test=lambda p: p.virtual_pipeline_model_parallel_size is None)
WRITTEN_OUT = when("the pipeline layout is written out", test=lambda p: p.pipeline_model_parallel_layout is not None)
DEALT = when("the pipeline layout is not written out", test=lambda p: p.pipeline_model_parallel_layout is None)
GIVEN = when(
    "the stages' layers are given", test=lambda p: p.pipeline_model_parallel_layout is not None or is_uneven(p)
)
UNPADDED = Condition(
    who="",
    text="the vocabulary is not padded",
    test=lambda s: (
        s.config.model.make_vocab_size_divisible_by is None
        and s.config.model.model_overrides.get("should_pad_vocab") is not True
    ),
)
PROCESSES_SET = Condition(
    who="", text="cluster.num_processes is set", test=lambda s: s.config.cluster.num_processes is not None
)
DRAWN = Condition(who="", text="prompts are random", test=lambda s: s.config.job.prompts is None)
BATCHED = Condition(who="", text="it is set", test=lambda s: s.config.performance.global_batch_size is not None)

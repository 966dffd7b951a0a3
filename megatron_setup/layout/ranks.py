"""Rules about ranks: every size, the world, and how the model's matrices and experts divide over it.

Rows without hints; `megatron_setup.parallelism` adds those. `reads` names every layout key a row looks at beside its
own, its condition's too: the search for the nearest layout goes by it.
"""

from launcher.requirement import (
    KNOWN_ARCHITECTURE,
    Between,
    Check,
    Equals,
    Requirement,
    Severity,
)
from megatron_setup.layout import keys, sums

_GROUPS = "megatron-core 0.19.2 parallel_state.py"
_CONFIG = "megatron-core 0.19.2 transformer/transformer_config.py"
_MICROBATCHES = "megatron-core 0.19.2 num_microbatches_calculator.py"
_LAYERS = "megatron-core 0.19.2 tensor_parallel/layers.py"
_PROVIDER = "megatron-bridge 0.6.2 models/gpt_provider.py"
_JOB = "launcher/jobs/mismatch.py"

_SIZES = (
    ("PL001", keys.TENSOR, _GROUPS),
    ("PL002", keys.PIPELINE, _GROUPS),
    ("PL003", keys.VIRTUAL, _GROUPS),
    ("PL004", keys.CONTEXT, _GROUPS),
    ("PL005", keys.EXPERT, _GROUPS),
    ("PL006", keys.EXPERT_TENSOR, _GROUPS),
    ("PL007", keys.DATA, _GROUPS),
    ("PL008", keys.PROCESSES, _GROUPS),
    ("PL009", keys.FIRST, _CONFIG),
    ("PL010", keys.LAST, _CONFIG),
    ("PL011", keys.GROUP, "megatron-core 0.19.2 pipeline_parallel/schedules.py"),
    ("PL012", keys.MICRO, _MICROBATCHES),
    ("PL013", keys.GLOBAL, _MICROBATCHES),
    ("PL014", keys.LENGTH, _PROVIDER),
    ("PL015", keys.PROMPTS, _JOB),
    ("PL016", keys.MIN_PROMPT, _JOB),
    ("PL017", keys.MAX_PROMPT, _JOB),
    ("PL018", keys.NEW, _JOB),
    ("PL019", keys.REQUESTS, "megatron-core 0.19.2 inference/contexts/dynamic_context.py"),
)

SIZE_ROWS = tuple(
    Requirement(
        code=code,
        key=key,
        want=Between(low=1),
        why="it counts what must exist; where it can be off, null is off and 0 is not",
        source=source,
    )
    for code, key, source in _SIZES
)

WORLD_ROWS = (
    Requirement(
        code="PL020",
        key=keys.PROCESSES,
        want=Check("a multiple of tensor x context x pipeline", sums.world_of_the_model),
        when=keys.MCORE & keys.PROCESSES_SET,
        why="every replica of the model takes that many ranks, and no rank may be left over",
        source=_GROUPS,
        reads=(keys.TENSOR, keys.CONTEXT, keys.PIPELINE),
    ),
    Requirement(
        code="PL021",
        key=keys.EXPERT,
        want=Check("expert tensor x expert x pipeline to divide the world size", sums.world_of_the_experts),
        when=keys.MCORE,
        why="the experts have a grid of their own over the same ranks; a dense model has it too",
        source=_GROUPS,
        reads=(keys.PROCESSES, keys.DATA, keys.TENSOR, keys.CONTEXT, keys.PIPELINE, keys.EXPERT_TENSOR),
    ),
    Requirement(
        code="PL022",
        key=keys.DATA,
        want=Check("num_processes / (tensor x context x pipeline)", sums.replicas),
        when=keys.MCORE & keys.PROCESSES_SET & keys.REPLICATED,
        why="megatron-core has no such setting: replicas are what the world leaves",
        source=_GROUPS,
        reads=(keys.PROCESSES, keys.TENSOR, keys.CONTEXT, keys.PIPELINE),
    ),
)

MODEL_ROWS = (
    Requirement(
        code="PL030",
        key=keys.TENSOR,
        want=Check(
            "a divisor of the attention heads",
            sums.divides(keys.TENSOR, size=lambda shape: shape.num_attention_heads, what="num_attention_heads"),
        ),
        when=keys.MCORE & KNOWN_ARCHITECTURE,
        why="each rank computes whole heads",
        source=_CONFIG,
    ),
    Requirement(
        code="PL031",
        key=keys.TENSOR,
        want=Check("a divisor or a multiple of the query groups", sums.query_groups),
        when=keys.MCORE & KNOWN_ARCHITECTURE,
        why="a rank holds whole query groups, or a whole number of ranks shares one",
        source=_CONFIG,
    ),
    Requirement(
        code="PL032",
        key=keys.TENSOR,
        want=Check(
            "a divisor of ffn_hidden_size",
            sums.divides(keys.TENSOR, size=lambda shape: shape.ffn_hidden_size, what="ffn_hidden_size"),
        ),
        when=keys.MCORE & keys.DENSE,
        why="the MLP's matrices are cut along ffn_hidden_size",
        source=_LAYERS,
    ),
    Requirement(
        code="PL033",
        key=keys.TENSOR,
        want=Check(
            "a divisor of the vocabulary",
            sums.divides(keys.TENSOR, size=lambda shape: shape.vocab_size, what="vocab_size"),
        ),
        when=keys.BRIDGE & KNOWN_ARCHITECTURE & keys.UNPADDED,
        why="the embedding is cut along the vocabulary, and Bridge pads it only where should_pad_vocab is true",
        source=_PROVIDER,
        reads=("model.make_vocab_size_divisible_by", "model.model_overrides"),
    ),
    Requirement(
        code="PL034",
        key=keys.TENSOR,
        want=Check(
            "a divisor of (heads + 2 x query groups) x kv_channels",
            sums.divides(keys.TENSOR, size=sums.qkv_size, what="(heads + 2 x query groups) x kv_channels ="),
        ),
        when=keys.MCORE & keys.SHARED_GROUPS,
        why="queries, keys and values are one matrix, cut into equal parts also where ranks share a query group",
        source="megatron-core 0.19.2 transformer/attention.py",
    ),
    Requirement(
        code="PL040",
        key=keys.EXPERT,
        want=Check(
            "a divisor of the experts",
            sums.divides(keys.EXPERT, size=lambda shape: shape.num_moe_experts, what="num_moe_experts"),
        ),
        when=keys.MCORE & keys.MOE,
        why="each rank holds whole experts, all ranks the same number",
        source="megatron-core 0.19.2 transformer/moe/moe_layer.py",
    ),
    Requirement(
        code="PL041",
        key=keys.EXPERT,
        want=Equals(1),
        when=keys.MCORE & keys.DENSE,
        why="a dense model has no experts to spread",
        source=_CONFIG,
    ),
    Requirement(
        code="PL042",
        key=keys.EXPERT_TENSOR,
        want=Equals(None),
        when=keys.MCORE & keys.DENSE,
        why="a dense model has no experts to cut: the setting is accepted and ignored",
        source=_GROUPS,
        severity=Severity.WARNING,
    ),
    Requirement(
        code="PL043",
        key=keys.EXPERT_TENSOR,
        want=Check("a divisor of moe_ffn_hidden_size", sums.expert_matrices),
        when=keys.MCORE & keys.MOE,
        why="each expert's matrices are cut along moe_ffn_hidden_size",
        source=_LAYERS,
        reads=(keys.TENSOR, keys.EXPERT),
    ),
)

ROWS = (*SIZE_ROWS, *WORLD_ROWS, *MODEL_ROWS)

"""Rules about order and length: layers on pipeline stages, cut sequences, batches, and what the engine takes.

Rows without hints; `megatron_setup.parallelism` adds those. `reads` names every layout key a row looks at beside its
own, its condition's too: the search for the nearest layout goes by it.
"""

from dataclasses import replace

from launcher.requirement import KNOWN_ARCHITECTURE, Check, Equals, Requirement
from megatron_setup.layout import keys, sums

_CONFIG = "megatron-core 0.19.2 transformer/transformer_config.py"
_SCHEDULES = "megatron-core 0.19.2 pipeline_parallel/schedules.py"
_JOB = "launcher/jobs/mismatch.py"
_WORLD = (keys.PROCESSES, keys.DATA, keys.TENSOR, keys.CONTEXT, keys.PIPELINE, keys.EXPERT, keys.EXPERT_TENSOR)
_SPLIT = (keys.FIRST, keys.LAST, keys.EMBEDDING, keys.LOSS)

PIPELINE_ROWS = (
    Requirement(
        code="PL050",
        key=keys.PIPELINE,
        want=Check("stages of whole layers", sums.layers_are_dealt),
        when=keys.MCORE & KNOWN_ARCHITECTURE & keys.DEALT,
        why="each stage holds whole layers; an uneven split that does not add up can pass upstream and lose layers",
        source="megatron-core 0.19.2 transformer/transformer_block.py",
        reads=(*_SPLIT, keys.WRITTEN),
    ),
    Requirement(
        code="PL051",
        key=keys.VIRTUAL,
        want=Check("a divisor of every stage's layers", sums.chunks_are_whole),
        when=keys.MCORE & KNOWN_ARCHITECTURE & keys.DEALT & keys.INTERLEAVED,
        why="each stage is cut into that many chunks of whole layers",
        source="megatron-core 0.19.2 transformer/transformer_block.py",
        reads=(keys.PIPELINE, *_SPLIT, keys.WRITTEN),
    ),
    Requirement(
        code="PL052",
        key=keys.PIPELINE,
        want=Check("at least 2 beside a virtual size", sums.stages_to_interleave),
        when=keys.MCORE & keys.INTERLEAVED,
        why="there is nothing to interleave on one stage",
        source="megatron-core 0.19.2 parallel_state.py",
        reads=(keys.VIRTUAL,),
    ),
    Requirement(
        code="PL053",
        key=keys.WRITTEN,
        want=Check("every stage and layer of the model, once", sums.layout_is_written),
        when=keys.MCORE & keys.WRITTEN_OUT,
        why="it must have pipeline x virtual stages and all layers; megatron-core would change a null virtual size",
        source="megatron-core 0.19.2 transformer/pipeline_parallel_layer_layout.py",
        reads=(keys.PIPELINE, keys.VIRTUAL),
    ),
    *(
        Requirement(
            code=code,
            key=key,
            want=Equals(off),
            when=keys.MCORE & keys.WRITTEN_OUT,
            why="pipeline_model_parallel_layout already says what every stage holds",
            source=_CONFIG,
            reads=(keys.WRITTEN,),
        )
        for code, key, off in (("PL054", keys.FIRST, None), ("PL055", keys.LAST, None))
    ),
    *(
        Requirement(
            code=code,
            key=key,
            want=Equals(False),
            when=keys.MCORE & keys.GIVEN,
            why="the stages' sizes are given in another way",
            source=_CONFIG,
            reads=(keys.WRITTEN, keys.FIRST, keys.LAST),
        )
        for code, key in (("PL056", keys.EMBEDDING), ("PL057", keys.LOSS))
    ),
    Requirement(
        code="PL058",
        key=keys.OVERLAP,
        want=Check("true with batch_p2p_comm=false, or false with more than 2 stages", sums.sends_when_interleaved),
        when=keys.MCORE & keys.INTERLEAVED & keys.PIPELINED,
        why="two stages that send both ways in one batch mix their messages up, and the loss is silently wrong",
        source="megatron-core 0.19.2 training/arguments.py, pipeline_parallel/schedules.py",
        reads=(keys.BATCH, keys.VIRTUAL, keys.PIPELINE),
    ),
    Requirement(
        code="PL059",
        key=keys.OVERLAP,
        want=Check("false or null", sums.sends_when_plain),
        when=keys.MCORE & keys.PLAIN & keys.PIPELINED,
        why="only the interleaved schedule can send while it computes",
        source=_SCHEDULES,
        reads=(keys.VIRTUAL, keys.PIPELINE),
    ),
    Requirement(
        code="PL060",
        key=keys.GROUP,
        want=Check("at least the pipeline-parallel size", sums.group_fills_the_pipeline),
        when=keys.MCORE & keys.INTERLEAVED,
        why="a group smaller than the pipeline leaves stages without work",
        source=_SCHEDULES,
        reads=(keys.VIRTUAL, keys.PIPELINE),
    ),
)

SEQUENCE_ROWS = (
    Requirement(
        code="PL070",
        key=keys.SEQUENCE,
        want=Equals(False),
        when=keys.MCORE & keys.UNSHARDED,
        why="megatron-core refuses it without tensor parallelism; Bridge turns it off without a word",
        source="megatron-core 0.19.2 model_parallel_config.py, megatron-bridge 0.6.2 models/transformer_config.py",
        reads=(keys.TENSOR,),
    ),
    Requirement(
        code="PL071",
        key=keys.SEQUENCE,
        want=Equals(True),
        when=keys.MCORE & keys.MOE & keys.SHARDED & keys.TRAINS,
        why="an MoE layer in training mode refuses tensor parallelism without sequence parallelism",
        source="megatron-core 0.19.2 transformer/moe/moe_layer.py",
        reads=(keys.TENSOR,),
    ),
    Requirement(
        code="PL072",
        key=keys.LENGTH,
        want=Check(
            "a multiple of 2 x context, and of context x tensor where sequences are split", sums.sequence_is_cut
        ),
        when=keys.MCORE,
        why="context parallelism cuts it into 2 x context parts, sequence parallelism a rank's share into tensor parts",
        source="megatron-bridge 0.6.2 training/config.py, megatron-core 0.19.2 tensor_parallel/mappings.py",
        reads=(keys.CONTEXT, keys.TENSOR, keys.SEQUENCE),
    ),
    Requirement(
        code="PL073",
        key=keys.LENGTH,
        want=Check("at most max_position_embeddings", sums.sequence_was_trained),
        when=replace(KNOWN_ARCHITECTURE, who="the model"),
        why="later positions were never trained; to extrapolate, raise it in model.hf_config_overrides",
        source="transformers 5.12.1 config.json",
    ),
)

JOB_ROWS = (
    Requirement(
        code="PL080",
        key=keys.VIRTUAL,
        want=Equals(None),
        when=keys.ENGINE,
        why="it takes one model per rank, not the chunks of an interleaved schedule",
        source="megatron-core 0.19.2 inference/model_inference_wrappers/abstract_model_inference_wrapper.py",
    ),
    Requirement(
        code="PL081",
        key=keys.CONTEXT,
        want=Equals(1),
        when=keys.ENGINE,
        why="it hands every rank whole sequences with the rotary positions of that rank's share: silently wrong tokens",
        source="megatron-core 0.19.2 models/common/embeddings/rotary_pos_embedding.py",
    ),
    Requirement(
        code="PL082",
        key=keys.REQUESTS,
        want=Check("a multiple of the tensor-parallel size", sums.requests_are_shared),
        when=keys.ENGINE,
        why="the ranks that share a layer share the requests too",
        source="megatron-core 0.19.2 inference/contexts/dynamic_context.py",
        reads=(keys.TENSOR,),
    ),
    Requirement(
        code="PL083",
        key=keys.LENGTH,
        want=Check("room for the longest prompt and its response", sums.response_fits),
        when=keys.JOB,
        why="a request that does not fit is not finished, and its tokens cannot be compared",
        source=_JOB,
        reads=(keys.MAX_PROMPT, keys.NEW),
    ),
    Requirement(
        code="PL084",
        key=keys.MIN_PROMPT,
        want=Check("at most max_prompt_tokens", sums.prompts_have_a_range),
        when=keys.JOB,
        why="prompt lengths are drawn between the two",
        source=_JOB,
        reads=(keys.MAX_PROMPT,),
    ),
    Requirement(
        code="PL085",
        key=keys.PROMPTS,
        want=Check("a multiple of the data-parallel size", sums.prompts_are_shared),
        when=keys.JOB & keys.DRAWN & keys.UNSPREAD,
        why="replicas take equal shares: each takes part in every gradient reduction",
        source=_JOB,
        reads=_WORLD,
    ),
    Requirement(
        code="PL086",
        key=keys.GLOBAL,
        want=Check("a multiple of micro_batch_size x data-parallel size", sums.batches_are_whole),
        when=keys.MCORE & keys.BATCHED,
        why="every replica runs the same number of whole micro-batches",
        source="megatron-core 0.19.2 num_microbatches_calculator.py",
        reads=(keys.MICRO, *_WORLD),
    ),
)

ROWS = (*PIPELINE_ROWS, *SEQUENCE_ROWS, *JOB_ROWS)

"""How decoder layers are dealt to pipeline stages: megatron-core 0.19.2's arithmetic, torch-free.

Owns the three ways upstream knows: evenly (the embedding and the loss may count as layers), with a first or last stage
of a given size, or written out. Each says in words what does not work out; which rule reports it is the table's.
"""

import re
from dataclasses import dataclass

from launcher.schema import ParallelismConfig

_REPEATS = (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)")
_LAYER_LETTERS = "ELtm"


@dataclass(frozen=True, kw_only=True)
class Deal:
    """`layers` counts what each pipeline stage gets, by rank; `problem` says why there is no deal, else it is empty."""

    layers: tuple[int, ...] = ()
    problem: str = ""


def is_uneven(parallelism: ParallelismConfig) -> bool:
    """True where the first or the last stage has a size of its own."""
    return (
        parallelism.num_layers_in_first_pipeline_stage is not None
        or parallelism.num_layers_in_last_pipeline_stage is not None
    )


def deal_evenly(parallelism: ParallelismConfig, *, num_layers: int) -> Deal:
    """Every stage gets the same count; the embedding and the loss take a layer's place where they count as one."""
    extra = parallelism.account_for_embedding_in_pipeline_split + parallelism.account_for_loss_in_pipeline_split
    total, size = num_layers + extra, parallelism.pipeline_model_parallel_size
    if total % size:
        counted = f"{num_layers} layers" + (f" + {extra} for embedding and loss = {total}" if extra else "")
        return Deal(problem=f"{counted} / pipeline {size} leaves {total % size}")
    return Deal(layers=(total // size,) * size)


def deal_unevenly(parallelism: ParallelismConfig, *, num_layers: int) -> Deal:
    """The first and last stages get what they are given, the stages between share the rest evenly."""
    first, last = parallelism.num_layers_in_first_pipeline_stage, parallelism.num_layers_in_last_pipeline_stage
    ends = [n for n in (first, last) if n is not None]
    rest, stages = num_layers - sum(ends), parallelism.pipeline_model_parallel_size - len(ends)
    sums = f"{num_layers} layers - {' - '.join(map(str, ends))} = {rest} for the {stages} other stages"
    if stages < 0 or rest < 0 or bool(rest) != bool(stages):
        return Deal(problem=sums)
    if stages and rest % stages:
        return Deal(problem=f"{sums}; {rest} / {stages} leaves {rest % stages}")
    middle = (rest // stages,) * stages if stages else ()
    return Deal(layers=(*(() if first is None else (first,)), *middle, *(() if last is None else (last,))))


def deal(parallelism: ParallelismConfig, *, num_layers: int) -> Deal:
    """The way that is asked for, the written one aside."""
    way = deal_unevenly if is_uneven(parallelism) else deal_evenly
    return way(parallelism, num_layers=num_layers)


def written_stages(layout: str) -> tuple[str, ...]:
    """`pipeline_model_parallel_layout` with its repeats written out, one string of letters a stage.

    As `PipelineParallelLayerLayout.parse_str_to_list`: "Et|(t|)*2L" is ("Et", "t", "t", "L").
    """
    text = layout.replace(",", "")
    for pattern in _REPEATS:
        text = re.sub(pattern, lambda match: match[1] * int(match[2]), text)
    return tuple(text.split("|"))


def written_problem(
    layout: str, *, pipeline: int, virtual: int | None, num_layers: int | None, mtp_num_layers: int | None
) -> str:
    """What is wrong with a written layout, empty where nothing is; `num_layers` None leaves the decoder uncounted."""
    stages = written_stages(layout)
    order = "".join(stages)
    unknown = sorted(set(order) - set(_LAYER_LETTERS))
    wanted = pipeline * (1 if virtual is None else virtual)
    if unknown:
        return f"the letters {' '.join(unknown)} are none of {' '.join(_LAYER_LETTERS)}"
    if len(stages) != wanted:
        return f"{len(stages)} stages are written, pipeline {pipeline} x virtual {virtual or 1} = {wanted}"
    if not (order.startswith("E") and order.endswith("L") and order.count("E") == order.count("L") == 1):
        return "the embedding E comes first, the loss L last, each once"
    if num_layers is not None and order.count("t") != num_layers:
        return f"{order.count('t')} layers t are written, the model has {num_layers}"
    if order.count("m") != (mtp_num_layers or 0):
        return f"{order.count('m')} prediction layers m are written, mtp_num_layers is {mtp_num_layers or 0}"
    return ""

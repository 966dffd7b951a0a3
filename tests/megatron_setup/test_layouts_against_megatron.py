"""Our verdict on thousands of layouts against what the real Megatron-Bridge and megatron-core do with them.

One process pretends a world of N ranks (torch's fake process group), so that process groups, configuration and model
are upstream's own. A difference is allowed only where `EXPLAINED` has an entry, and each must still be needed.
"""

import logging
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pytest

from launcher.requirement import Severity, Subject, check_all
from launcher.schema import Architecture, JobKind
from megatron_setup import cpu
from megatron_setup.layout.nearest import with_values
from megatron_setup.parallelism import ROWS
from tests.megatron_setup.example_layouts import DENSE, MOE, plain_config
from tests.megatron_setup.upstream_layouts import Oracle, Upstream, leave_world


@dataclass(frozen=True, kw_only=True)
class Explained:
    """A layout that we refuse and upstream lets pass, with the reason."""

    why: str
    applies: Callable[[frozenset[str], Upstream], bool]


EXPLAINED = {
    "sequence parallelism that Bridge turns off": Explained(
        why="megatron-core refuses it at TP 1, but Bridge's finalize() rewrites it before megatron-core looks",
        applies=lambda codes, upstream: codes == {"PL070"} and upstream.silent == "sequence_parallel is off",
    ),
    "stages that lose layers": Explained(
        why="a first and last stage that do not add up pass every assert where the middle has fewer than 0 stages or "
        "layers, and a model with other layers is built; 0 virtual stages hold none",
        applies=lambda codes, upstream: (
            codes <= {"PL003", "PL050", "PL051", "PL058"} and upstream.silent == "other layers are built"
        ),
    ),
    "two interleaved stages that send in batches": Explained(
        why="megatron-core refuses it in megatron/training/arguments.py only, which a Bridge run never sees",
        applies=lambda codes, upstream: codes == {"PL058"} and not upstream.silent,
    ),
    "a virtual size that megatron-core fills in": Explained(
        why="with a written layout and a null virtual size megatron-core takes stages / PP, so the schedule changes",
        applies=lambda codes, upstream: codes == {"PL053"} and upstream.silent == "the schedule is interleaved",
    ),
    "0 read as 1": Explained(
        why="Bridge hands `size or 1` to megatron-core for CP and EP; here 0 is a mistake",
        applies=lambda codes, upstream: codes <= {"PL004", "PL005"} and upstream.silent == "a 0 is read as 1",
    ),
}


@pytest.fixture(scope="module", autouse=True)
def megatron() -> Iterator[None]:
    """The CPU platform, without upstream's notices; no process group is left behind."""
    cpu.install()
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)
    leave_world()


def _subject(shape: Architecture, *, values: dict[str, Any]) -> Subject:
    """A `setup` job: what the engine and the prompts add has tests of its own."""
    return Subject(config=with_values(plain_config(JobKind.setup), values=values), architecture=shape)


def _ranks(seed: int) -> list[dict[str, Any]]:
    """Everything about ranks, drawn so that about one layout in eight fits; the world fits more often than not."""
    draw = random.Random(seed).choice
    layouts: list[dict[str, Any]] = []
    for _ in range(1800):
        tensor, context = draw((1, 1, 2, 2, 3, 4, 6, 12)), draw((1, 1, 1, 2, 3))
        pipeline, virtual = draw((1, 1, 2, 2, 3, 4)), draw((None, None, None, 1, 2, 3))
        expert, expert_tensor = draw((1, 1, 1, 2, 2, 3, 4)), draw((None, None, 1, 2, 4))
        fits = math.lcm(tensor * context, expert * (expert_tensor or (1 if expert > 1 else tensor))) * pipeline
        layouts.append(
            {
                "cluster.num_processes": draw((fits, fits, 2 * fits, 2, 3, 4, 6, 8, 12)) if fits <= 24 else 24,
                "parallelism.tensor_model_parallel_size": tensor,
                "parallelism.pipeline_model_parallel_size": pipeline,
                "parallelism.virtual_pipeline_model_parallel_size": virtual,
                "parallelism.context_parallel_size": context,
                "parallelism.expert_model_parallel_size": expert,
                "parallelism.expert_tensor_parallel_size": expert_tensor,
                "parallelism.sequence_parallel": draw((False, False, tensor > 1, True)),
                "parallelism.overlap_p2p_comm": virtual is not None,
                "parallelism.batch_p2p_comm": virtual is None,
                "model.seq_length": draw((144, 144, 128, 96, 63)),
            }
        )
    return layouts


def _splits() -> list[dict[str, Any]]:
    """Everything about stages, crossed, each in a world that fits."""
    ends = (None, 0, 1, 2, 3, 5, 7)
    return [
        {
            "parallelism.pipeline_model_parallel_size": pipeline,
            "parallelism.virtual_pipeline_model_parallel_size": virtual,
            "parallelism.num_layers_in_first_pipeline_stage": first,
            "parallelism.num_layers_in_last_pipeline_stage": last,
            "parallelism.account_for_embedding_in_pipeline_split": embedding,
            "parallelism.account_for_loss_in_pipeline_split": loss,
        }
        for pipeline, virtual, first, last, embedding, loss in product(
            (1, 2, 3, 4, 5), (None, 1, 2), ends, ends, (False, True), (False, True)
        )
    ]


def _written() -> list[dict[str, Any]]:
    layouts = (
        "Et*8L",
        "Et*4|t*4L",
        "Et*3|t*3|t|tL",
        "E|(t|)*8,L",
        "Et*2|t*2|t*2|t*2L",
        "Et*6|L",
        "t*8|EL",
        "Et*8m|L",
        "Ex|L",
    )
    return [
        {
            "parallelism.pipeline_model_parallel_layout": layout,
            "parallelism.pipeline_model_parallel_size": pipeline,
            "parallelism.virtual_pipeline_model_parallel_size": virtual,
            "parallelism.num_layers_in_first_pipeline_stage": first,
            "parallelism.num_layers_in_last_pipeline_stage": last,
            "parallelism.account_for_loss_in_pipeline_split": loss,
        }
        for layout, pipeline, virtual, first, last, loss in product(
            layouts, (1, 2, 4, 5), (None, 1, 2), (None, 2), (None, 2), (False, True)
        )
    ]


def _zeros() -> list[dict[str, Any]]:
    names = ("tensor_model", "pipeline_model", "virtual_pipeline_model", "context", "expert_model", "expert_tensor")
    return [
        {
            "cluster.num_processes": 4,
            "parallelism.pipeline_model_parallel_size": 2,
            f"parallelism.{name}_parallel_size": 0,
        }
        for name in names
    ]


def _matrices() -> list[Subject]:
    """One size of the model after the other that does not divide."""
    dense = [
        replace(
            DENSE, num_layers=1, num_attention_heads=heads, num_query_groups=groups, ffn_hidden_size=ffn, vocab_size=v
        )
        for heads, groups, ffn, v in product((4, 6, 12), (1, 2, 3), (24, 32), (60, 64))
        if heads % groups == 0
    ]
    moe = [replace(MOE, num_layers=1, num_attention_heads=6, vocab_size=60, moe_ffn_hidden_size=f) for f in (8, 12)]
    sizes = [{"parallelism.tensor_model_parallel_size": tensor} for tensor in (2, 3, 4)]
    sizes.append({"parallelism.expert_tensor_parallel_size": 3, "cluster.num_processes": 3})
    return [_subject(shape, values=values) for shape, values in product((*dense, *moe), sizes)]


def _on(shape: Architecture, *, layouts: list[dict[str, Any]]) -> list[Subject]:
    return [_subject(shape, values=values) for values in layouts]


SWEEPS: dict[str, Callable[[], list[Subject]]] = {
    "ranks, dense": lambda: _on(DENSE, layouts=_ranks(0)),
    "ranks, MoE": lambda: _on(MOE, layouts=_ranks(1)),
    "matrices": _matrices,
    "stages": lambda: _on(DENSE, layouts=_splits()),
    "written stages": lambda: _on(DENSE, layouts=_written()),
    "zeros": lambda: _on(MOE, layouts=_zeros()),
}

ENFORCED = {
    *("PL001", "PL002", "PL006", "PL009", "PL010"),
    *("PL020", "PL021", "PL030", "PL031", "PL032", "PL033", "PL034", "PL040", "PL041", "PL043"),
    *("PL050", "PL051", "PL052", "PL053", "PL054", "PL055", "PL056", "PL057", "PL072"),
}
"""Rules that upstream enforces itself: each is seen as the only thing wrong with a layout that upstream refuses."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One layout, judged twice."""

    subject: Subject
    codes: frozenset[str]
    upstream: Upstream

    @property
    def outcome(self) -> str:
        """How the two compare: both alike, the entry that explains why not, or UNEXPLAINED."""
        if self.codes and self.upstream.refused:
            return "both refuse"
        if not self.codes and self.upstream == Upstream():
            return "both fit"
        if not self.codes or self.upstream.refused:
            return "UNEXPLAINED"
        names = (name for name, entry in EXPLAINED.items() if entry.applies(self.codes, self.upstream))
        return next(names, "UNEXPLAINED")


def _judge(subject: Subject, *, oracle: Oracle) -> Verdict:
    errors = [v for v in check_all(ROWS, subject=subject) if v.row.severity is Severity.ERROR]
    return Verdict(subject=subject, codes=frozenset(v.row.code for v in errors), upstream=oracle.ask(subject))


@pytest.fixture(scope="module")
def verdicts() -> dict[str, list[Verdict]]:
    """Every sweep, judged."""
    oracle = Oracle()
    return {name: [_judge(subject, oracle=oracle) for subject in subjects()] for name, subjects in SWEEPS.items()}


def _count(verdicts: dict[str, list[Verdict]]) -> Counter[str]:
    return Counter(verdict.outcome for sweep in verdicts.values() for verdict in sweep)


@pytest.mark.slow
@pytest.mark.parametrize("sweep", SWEEPS)
def test_verdicts_agree(sweep: str, verdicts: dict[str, list[Verdict]]) -> None:
    unexplained = [v for v in verdicts[sweep] if v.outcome == "UNEXPLAINED"]
    assert not unexplained, "\n".join(
        f"ours {sorted(v.codes)}, upstream {v.upstream}, {v.subject.config.parallelism}" for v in unexplained[:10]
    )


@pytest.mark.slow
def test_the_sweeps_are_large_and_find_both(verdicts: dict[str, list[Verdict]]) -> None:
    counts = _count(verdicts)
    print(dict(counts))
    assert counts["both fit"] > 400
    assert counts["both refuse"] > 6000


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPLAINED)
def test_every_explanation_is_needed(name: str, verdicts: dict[str, list[Verdict]]) -> None:
    assert _count(verdicts)[name] > 0


@pytest.mark.slow
def test_upstream_refuses_for_each_rule_alone(verdicts: dict[str, list[Verdict]]) -> None:
    refused = [v.codes for sweep in verdicts.values() for v in sweep if v.upstream.refused]
    assert {code for codes in refused if len(codes) == 1 for code in codes} >= ENFORCED

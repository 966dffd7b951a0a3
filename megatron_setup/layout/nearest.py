"""The valid layout nearest to one that was refused, and what to type for it.

Owns the search. It knows no rule: it settles one key after the other, and each value must satisfy every row whose keys
are settled. What a key may become stands in `_PROPOSALS`: never more ranks than asked, except where the world is set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from launcher.requirement import Finding, Requirement, Subject, Want, show
from launcher.schema import RunConfig
from launcher.schema.layout import derive_expert_tensor_parallel_size, derive_layout
from megatron_setup.layout import keys
from megatron_setup.layout.stages import written_stages
from megatron_setup.layout.sums import sequence_multiple

Propose = Callable[[Subject], Iterable[Any]]
_LARGEST = 1024
"""Sizes are searched downwards from here; nobody has a group of more ranks."""
_PATIENCE = 10_000
"""Values that a search tries (about half a second); a layout that can be found takes a few hundred."""


def with_layout_hints(rows: Sequence[Requirement]) -> tuple[Requirement, ...]:
    """The rows, of any tables; those about a layout key all hint at the one layout that satisfies them all.

    A row's own hint makes that row hold only, and two rows would send a person back and forth. Where the search finds
    nothing (the rows contradict each other), a row keeps its own hint.
    """
    plain = [replace(row, want=row.want.want if isinstance(row.want, _Hinted) else row.want) for row in rows]
    search = _Search([row for row in plain if row.key in _ORDER])
    return tuple(replace(row, want=_Hinted(row.want, search)) if row.key in _ORDER else row for row in plain)


@dataclass(frozen=True)
class _Hinted:
    """A wish whose hint is the nearest layout."""

    want: Want
    search: _Search

    @property
    def text(self) -> str:
        return self.want.text

    def find(self, subject: Subject, *, key: str) -> Finding | None:
        finding = self.want.find(subject, key=key)
        nearest = None if finding is None else self.search.nearest_layout(subject)
        if finding is None or nearest is None:
            return finding
        changed = [key for key in _ORDER if nearest.value(key) != subject.value(key)]
        return replace(finding, hints=tuple(f"{key}={show(nearest.value(key))}" for key in changed))


class _Search:
    """The search over some rows. It remembers its last answer: every row that a layout violates asks the same."""

    def __init__(self, rows: Sequence[Requirement]) -> None:
        self._steps = _make_steps(rows)
        self._last: tuple[Subject, Subject | None] | None = None

    def nearest_layout(self, subject: Subject) -> Subject | None:
        """The subject with as little changed as the search finds necessary; None where it finds no layout."""
        if self._last is None or self._last[0] is not subject:
            small = {key: 1 for key in keys.SIZES if (value := subject.value(key)) is not None and value < 1}
            start = replace(subject, config=with_values(subject.config, values=small))
            self._last = (subject, _settle(start, steps=self._steps, budget=iter(range(_PATIENCE))))
        return self._last[1]


def with_values(config: RunConfig, *, values: Mapping[str, Any]) -> RunConfig:
    """The configuration with these dotted keys (group.name) changed."""
    for key, value in values.items():
        group, name = key.split(".")
        config = replace(config, **{group: replace(getattr(config, group), **{name: value})})
    return config


@dataclass(frozen=True, kw_only=True)
class _Step:
    """A key, what it may become, and the rows that can be judged once it is settled."""

    key: str
    propose: Propose
    rows: tuple[Requirement, ...]


def _settle(subject: Subject, *, steps: tuple[_Step, ...], budget: Iterator[int]) -> Subject | None:
    """Depth first, proposals in order; None where no proposal of the first step leads to the end within the budget."""
    if not steps:
        return subject
    step, *later = steps
    for value in step.propose(subject):
        if next(budget, None) is None:
            return None
        proposed = replace(subject, config=with_values(subject.config, values={step.key: value}))
        if all(row.check(proposed) is None for row in step.rows):
            found = _settle(proposed, steps=tuple(later), budget=budget)
            if found is not None:
                return found
    return None


def _keep_or(key: str, *others: Any) -> Propose:
    return lambda subject: (subject.value(key), *others)


def _down(key: str) -> Propose:
    return lambda subject: range(min(subject.value(key), _LARGEST), 0, -1)


def _virtual(subject: Subject) -> Iterable[int | None]:
    parallelism = subject.config.parallelism
    asked, written = parallelism.virtual_pipeline_model_parallel_size, parallelism.pipeline_model_parallel_layout
    yield asked
    if written is not None:
        yield max(1, len(written_stages(written)) // parallelism.pipeline_model_parallel_size)
    if asked is not None:
        yield from range(min(asked, _LARGEST), 1, -1)
    yield None


def _expert_tensor(subject: Subject) -> Iterable[int | None]:
    parallelism = subject.config.parallelism
    if parallelism.expert_tensor_parallel_size is None:
        yield None
    yield from range(min(derive_expert_tensor_parallel_size(parallelism), _LARGEST), 0, -1)
    yield None


def _length(subject: Subject) -> Iterable[int]:
    config, multiple = subject.config, sequence_multiple(subject.config)
    wanted = config.model.seq_length
    if keys.JOB.test(subject):
        prompt = config.job.max_prompt_tokens if config.job.prompts is None else 1
        wanted = max(wanted, prompt + config.generation.max_new_tokens)
    yield wanted
    yield _up(wanted, unit=multiple)
    yield wanted // multiple * multiple
    if subject.architecture is not None:
        yield subject.architecture.max_position_embeddings // multiple * multiple


def _max_prompt(subject: Subject) -> Iterable[int]:
    config = subject.config
    yield config.job.max_prompt_tokens
    yield config.model.seq_length - config.generation.max_new_tokens
    yield config.model.seq_length - 1


def _new_tokens(subject: Subject) -> Iterable[int]:
    config = subject.config
    yield config.generation.max_new_tokens
    yield config.model.seq_length - (config.job.max_prompt_tokens if config.job.prompts is None else 1)


def _processes(subject: Subject) -> Iterable[int | None]:
    asked, layout = subject.config.cluster.num_processes, derive_layout(subject.config)
    yield asked
    if asked is not None:
        yield asked // layout.smallest_world * layout.smallest_world
        yield layout.smallest_world
    yield None


def _data(subject: Subject) -> Iterable[int | None]:
    asked, layout = subject.config.parallelism.data_parallel_size, derive_layout(subject.config)
    yield asked
    if asked is not None and subject.config.cluster.num_processes is not None:
        yield layout.data_parallel_size
    if asked is not None:
        yield _up(asked, unit=layout.smallest_world // layout.model_size)
    yield None


def _prompts(subject: Subject) -> Iterable[int]:
    yield subject.config.job.num_prompts
    yield _up(subject.config.job.num_prompts, unit=derive_layout(subject.config).data_parallel_size)


def _global_batch(subject: Subject) -> Iterable[int | None]:
    performance = subject.config.performance
    yield performance.global_batch_size
    if performance.global_batch_size is not None:
        unit = performance.micro_batch_size * derive_layout(subject.config).data_parallel_size
        yield _up(performance.global_batch_size, unit=unit)
    yield None


def _requests(subject: Subject) -> Iterable[int]:
    yield subject.config.generation.max_requests
    yield _up(subject.config.generation.max_requests, unit=subject.config.parallelism.tensor_model_parallel_size)


def _up(value: int, *, unit: int) -> int:
    return -(-value // unit) * unit


_PROPOSALS: tuple[tuple[str, Propose], ...] = (
    (keys.WRITTEN, _keep_or(keys.WRITTEN, None)),
    (keys.FIRST, _keep_or(keys.FIRST, None)),
    (keys.LAST, _keep_or(keys.LAST, None)),
    (keys.EMBEDDING, _keep_or(keys.EMBEDDING, False)),
    (keys.LOSS, _keep_or(keys.LOSS, False)),
    (keys.PIPELINE, _down(keys.PIPELINE)),
    (keys.VIRTUAL, _virtual),
    (keys.OVERLAP, _keep_or(keys.OVERLAP, True, False, None)),
    (keys.BATCH, _keep_or(keys.BATCH, False, None)),
    (keys.GROUP, _keep_or(keys.GROUP, None)),
    (keys.TENSOR, _down(keys.TENSOR)),
    (keys.CONTEXT, _down(keys.CONTEXT)),
    (keys.SEQUENCE, _keep_or(keys.SEQUENCE, False, True)),
    (keys.LENGTH, _length),
    (keys.MAX_PROMPT, _max_prompt),
    (keys.NEW, _new_tokens),
    (keys.MIN_PROMPT, lambda subject: (subject.config.job.min_prompt_tokens, subject.config.job.max_prompt_tokens)),
    (keys.EXPERT, _down(keys.EXPERT)),
    (keys.EXPERT_TENSOR, _expert_tensor),
    (keys.PROCESSES, _processes),
    (keys.DATA, _data),
    (keys.MICRO, _keep_or(keys.MICRO)),
    (keys.PROMPTS, _prompts),
    (keys.GLOBAL, _global_batch),
    (keys.REQUESTS, _requests),
)


_ORDER = tuple(key for key, _ in _PROPOSALS)


def _make_steps(rows: Sequence[Requirement]) -> tuple[_Step, ...]:
    """Each row at the last of its keys, in the order of the proposals."""
    last = [(max(_ORDER.index(key) for key in (row.key, *row.reads) if key in _ORDER), row) for row in rows]
    return tuple(
        _Step(key=key, propose=propose, rows=tuple(row for at, row in last if at == index))
        for index, (key, propose) in enumerate(_PROPOSALS)
    )

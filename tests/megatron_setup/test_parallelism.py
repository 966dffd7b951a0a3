"""The layout rules: one golden text each, hints that repair in one round, and what the provider is given."""

import random
from typing import Any

import pytest

from launcher.requirement import Equals, Requirement, Severity, Subject, Want, check_all, render
from launcher.schema import Architecture, JobKind, PlatformKind
from launcher.schema.layout import derive_layout
from megatron_setup.layout import keys
from megatron_setup.layout.nearest import with_layout_hints, with_values
from megatron_setup.layout.ranks import SIZE_ROWS
from megatron_setup.parallelism import REQUIREMENTS, ROWS, environment, provider_fields
from tests.megatron_setup.example_layouts import DENSE, MOE, plain_config, subject, typed
from tests.plugin_golden import Golden

_UNEVEN = {"parallelism__num_layers_in_first_pipeline_stage": 3, "parallelism__pipeline_model_parallel_size": 2}
_INTERLEAVED = {
    "parallelism__pipeline_model_parallel_size": 2,
    "parallelism__virtual_pipeline_model_parallel_size": 2,
    "job__kind": JobKind.setup,
}
_WRITTEN = {"parallelism__pipeline_model_parallel_layout": "Et*4|t*4L", "parallelism__pipeline_model_parallel_size": 2}

CASES: dict[str, tuple[Architecture, dict[str, Any]]] = {
    **{row.code: (DENSE, {row.key.replace(".", "__"): 0}) for row in SIZE_ROWS},
    "PL020": (
        DENSE,
        {
            "cluster__num_processes": 6,
            "parallelism__tensor_model_parallel_size": 2,
            "parallelism__pipeline_model_parallel_size": 2,
        },
    ),
    "PL021": (MOE, {"cluster__num_processes": 6, "parallelism__expert_model_parallel_size": 4}),
    "PL022": (DENSE, {"cluster__num_processes": 4, "parallelism__data_parallel_size": 3}),
    "PL030": (DENSE, {"parallelism__tensor_model_parallel_size": 8}),
    "PL031": (DENSE, {"parallelism__tensor_model_parallel_size": 6}),
    "PL032": (DENSE, {"parallelism__tensor_model_parallel_size": 5}),
    "PL033": (DENSE, {"parallelism__tensor_model_parallel_size": 5}),
    "PL034": (DENSE, {"parallelism__tensor_model_parallel_size": 12}),
    "PL040": (MOE, {"parallelism__expert_model_parallel_size": 3}),
    "PL041": (DENSE, {"parallelism__expert_model_parallel_size": 2}),
    "PL042": (DENSE, {"parallelism__expert_tensor_parallel_size": 1}),
    "PL043": (MOE, {"parallelism__expert_tensor_parallel_size": 3}),
    "PL050": (
        DENSE,
        {"parallelism__num_layers_in_first_pipeline_stage": 1, "parallelism__pipeline_model_parallel_size": 4},
    ),
    "PL051": (DENSE, _INTERLEAVED | {"parallelism__virtual_pipeline_model_parallel_size": 3}),
    "PL052": (DENSE, _INTERLEAVED | {"parallelism__pipeline_model_parallel_size": 1}),
    "PL053": (DENSE, _WRITTEN | {"parallelism__pipeline_model_parallel_layout": "Et*4|t*3L"}),
    "PL054": (DENSE, _WRITTEN | {"parallelism__num_layers_in_first_pipeline_stage": 4}),
    "PL055": (DENSE, _WRITTEN | {"parallelism__num_layers_in_last_pipeline_stage": 4}),
    "PL056": (DENSE, _UNEVEN | {"parallelism__account_for_embedding_in_pipeline_split": True}),
    "PL057": (DENSE, _WRITTEN | {"parallelism__account_for_loss_in_pipeline_split": True}),
    "PL058": (DENSE, _INTERLEAVED),
    "PL059": (DENSE, {"parallelism__pipeline_model_parallel_size": 2, "parallelism__overlap_p2p_comm": True}),
    "PL060": (
        DENSE,
        _INTERLEAVED
        | {
            "parallelism__overlap_p2p_comm": True,
            "parallelism__batch_p2p_comm": False,
            "parallelism__microbatch_group_size_per_vp_stage": 1,
        },
    ),
    "PL070": (DENSE, {"parallelism__sequence_parallel": True}),
    "PL071": (MOE, {"parallelism__tensor_model_parallel_size": 2}),
    "PL072": (
        DENSE,
        {
            "parallelism__tensor_model_parallel_size": 4,
            "parallelism__context_parallel_size": 3,
            "parallelism__sequence_parallel": True,
            "model__seq_length": 100,
            "job__kind": JobKind.setup,
        },
    ),
    "PL073": (DENSE, {"model__seq_length": 1024}),
    "PL080": (DENSE, _INTERLEAVED | {"job__kind": JobKind.mismatch}),
    "PL081": (DENSE, {"parallelism__context_parallel_size": 2}),
    "PL082": (DENSE, {"parallelism__tensor_model_parallel_size": 2, "generation__max_requests": 31}),
    "PL083": (DENSE, {"generation__max_new_tokens": 100}),
    "PL084": (DENSE, {"job__min_prompt_tokens": 64}),
    "PL085": (DENSE, {"parallelism__data_parallel_size": 5}),
    "PL086": (DENSE, {"parallelism__data_parallel_size": 2, "performance__global_batch_size": 12}),
}


def _errors_and_warnings(layout: Subject) -> list[str]:
    return [violation.row.code for violation in check_all(ROWS, subject=layout)]


def test_every_rule_has_a_case() -> None:
    assert [row.code for row in REQUIREMENTS] == sorted(CASES)


@pytest.mark.parametrize("code", sorted(CASES))
def test_text(code: str, golden: Golden) -> None:
    shape, values = CASES[code]
    violations = check_all(REQUIREMENTS, subject=subject(shape, **values))
    (text,) = [render(violation) for violation in violations if violation.row.code == code]
    golden(text, name=f"layout/{code}.txt")


def _hints(layout: Subject) -> tuple[str, ...]:
    found = check_all(REQUIREMENTS, subject=layout)
    return tuple(hint for violation in found for hint in violation.finding.hints)


@pytest.mark.parametrize("code", sorted(CASES))
def test_typing_the_hints_repairs_the_layout(code: str) -> None:
    shape, values = CASES[code]
    layout = subject(shape, **values)
    assert _errors_and_warnings(typed(layout, hints=_hints(layout))) == []


def test_the_plainest_run_is_valid_without_a_shape_too() -> None:
    for shape in (None, DENSE, MOE):
        assert _errors_and_warnings(subject(shape)) == []


_CHOICES: dict[str, tuple[Any, ...]] = {
    keys.WRITTEN: (None, None, None, "Et*4|t*4L", "E|(t|)*8,L", "nonsense"),
    keys.FIRST: (None, None, 0, 1, 3, 9),
    keys.LAST: (None, None, 1, 2, 5),
    keys.EMBEDDING: (False, True),
    keys.LOSS: (False, True),
    keys.PIPELINE: (0, 1, 2, 3, 4, 5, 8),
    keys.VIRTUAL: (None, None, 0, 1, 2, 3),
    keys.OVERLAP: (None, False, True),
    keys.BATCH: (None, False, True),
    keys.GROUP: (None, 0, 1, 2, 4),
    keys.TENSOR: (0, 1, 2, 3, 4, 5, 6, 8, 12, 100_000),
    keys.CONTEXT: (0, 1, 2, 3, 7),
    keys.SEQUENCE: (False, True),
    keys.LENGTH: (0, 1, 63, 100, 128, 513, 4096),
    keys.MAX_PROMPT: (0, 1, 48, 600),
    keys.MIN_PROMPT: (0, 1, 64),
    keys.NEW: (0, 1, 32, 600),
    keys.EXPERT: (0, 1, 2, 3, 4, 5),
    keys.EXPERT_TENSOR: (None, 0, 1, 2, 3),
    keys.PROCESSES: (None, 0, 1, 3, 4, 6, 8),
    keys.DATA: (None, None, 0, 1, 2, 3),
    keys.MICRO: (0, 1, 4),
    keys.PROMPTS: (0, 1, 24, 25),
    keys.GLOBAL: (None, 0, 1, 24),
    keys.REQUESTS: (0, 1, 31, 32),
    "job.kind": (JobKind.mismatch, JobKind.setup),
    "job.prompts": (None, "prompts.jsonl"),
}


def _random_layout(seed: int) -> Subject:
    """Any of the keys, wrong more often than right."""
    draw = random.Random(seed)
    changed = {key: draw.choice(choices) for key, choices in _CHOICES.items() if draw.random() < 0.5}
    shape = draw.choice((None, DENSE, MOE))
    return Subject(config=with_values(plain_config(), values=changed), architecture=shape)


@pytest.mark.parametrize("seed", range(150))
def test_hints_repair_random_layouts_in_one_round(seed: int) -> None:
    layout = _random_layout(seed)
    assert _errors_and_warnings(typed(layout, hints=_hints(layout))) == []


def test_hints_ask_for_no_more_ranks_than_were_asked_for() -> None:
    for seed in range(150, 200):
        before = _random_layout(seed)
        after = typed(before, hints=_hints(before))
        for key in (keys.TENSOR, keys.PIPELINE, keys.CONTEXT, keys.EXPERT):
            assert after.value(key) <= max(1, before.value(key))


def _other_table(want: Want) -> Requirement:
    return Requirement(code="XX001", key=keys.TENSOR, want=want, why="because", source="another table")


def test_hints_satisfy_the_rows_of_other_tables_too() -> None:
    rows = with_layout_hints((*REQUIREMENTS, _other_table(Equals(1))))
    found = check_all(rows, subject=subject(DENSE, parallelism__tensor_model_parallel_size=5))
    assert {violation.finding.hints for violation in found} == {("parallelism.tensor_model_parallel_size=1",)}
    assert "XX001" in {violation.row.code for violation in found}


def test_a_row_that_no_layout_satisfies_keeps_its_own_hint() -> None:
    rows = with_layout_hints((*REQUIREMENTS, _other_table(Equals(7))))
    (violation,) = check_all(rows, subject=subject(DENSE))
    assert violation.finding.hints == ("parallelism.tensor_model_parallel_size=7",)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.code)
def test_a_rule_reads_no_layout_key_that_it_does_not_name(row: Any) -> None:
    """The search judges a row once all keys it names are settled: one it does not name would be judged too early."""
    named, draw = {row.key, *row.reads}, random.Random(row.code)
    for seed in range(60):
        layout = _random_layout(seed)
        small = {key: 1 for key in keys.SIZES if layout.value(key) == 0}
        layout = Subject(config=with_values(layout.config, values=small), architecture=layout.architecture)
        others = [key for key in _CHOICES if key not in named and not key.startswith("job.kind")]
        others = [key for key in others if key != "job.prompts"]
        changed = {key: draw.choice([v for v in _CHOICES[key] if v != 0 or v is False]) for key in others}
        moved = Subject(config=with_values(layout.config, values=changed), architecture=layout.architecture)
        assert (row.check(layout) is None) == (row.check(moved) is None), changed


def test_sizes_and_their_rules_name_the_same_keys() -> None:
    assert tuple(row.key for row in SIZE_ROWS) == keys.SIZES


@pytest.mark.parametrize(
    ("values", "world", "data", "expert_tensor", "expert_data"),
    [
        ({}, 1, 1, 1, 1),
        ({"parallelism__tensor_model_parallel_size": 2}, 2, 1, 2, 1),
        ({"parallelism__expert_model_parallel_size": 4}, 4, 4, 1, 1),
        (
            {"parallelism__tensor_model_parallel_size": 2, "parallelism__expert_model_parallel_size": 4},
            4,
            2,
            1,
            1,
        ),
        (
            {
                "parallelism__tensor_model_parallel_size": 2,
                "parallelism__expert_model_parallel_size": 4,
                "parallelism__expert_tensor_parallel_size": 2,
            },
            8,
            4,
            2,
            1,
        ),
        ({"parallelism__pipeline_model_parallel_size": 2, "parallelism__data_parallel_size": 3}, 6, 3, 1, 3),
        ({"cluster__num_processes": 8, "parallelism__context_parallel_size": 2}, 8, 4, 1, 8),
    ],
)
def test_derived_layout(values: dict[str, int], world: int, data: int, expert_tensor: int, expert_data: int) -> None:
    layout = derive_layout(subject(MOE, **values).config)
    assert layout.world_size == world
    assert layout.data_parallel_size == data
    assert layout.expert_tensor_parallel_size == expert_tensor
    assert layout.expert_data_parallel_size == expert_data


def test_deriving_a_layout_never_raises() -> None:
    for seed in range(200):
        derive_layout(_random_layout(seed).config)


def test_provider_fields_name_what_is_set_and_nothing_else() -> None:
    plain = provider_fields(plain_config())
    assert plain == {
        "tensor_model_parallel_size": 1,
        "pipeline_model_parallel_size": 1,
        "context_parallel_size": 1,
        "expert_model_parallel_size": 1,
        "expert_tensor_parallel_size": 1,
        "sequence_parallel": False,
        "account_for_embedding_in_pipeline_split": False,
        "account_for_loss_in_pipeline_split": False,
    }
    fields = provider_fields(subject(DENSE, **_INTERLEAVED, parallelism__overlap_p2p_comm=True).config)
    assert set(fields) - set(plain) == {"virtual_pipeline_model_parallel_size", "overlap_p2p_comm"}


@pytest.mark.parametrize(
    ("values", "variables"),
    [
        ({}, {}),
        ({"parallelism__tensor_model_parallel_size": 2}, {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}),
        ({"parallelism__context_parallel_size": 2}, {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}),
        ({"parallelism__pipeline_model_parallel_size": 2}, {}),
        ({"parallelism__tensor_model_parallel_size": 2, "platform__kind": PlatformKind.blackwell}, {}),
        ({"parallelism__tensor_model_parallel_size": 2, "platform__kind": PlatformKind.cpu}, {}),
        ({"parallelism__tensor_model_parallel_size": 2, "moe__overlap_moe_expert_parallel_comm": True}, {}),
    ],
)
def test_environment(values: dict[str, Any], variables: dict[str, str]) -> None:
    layout = subject(MOE, **({"platform__kind": PlatformKind.hopper} | values))
    assert environment(layout.config) == variables


def test_only_a_setting_that_is_ignored_is_a_warning() -> None:
    assert [row.code for row in REQUIREMENTS if row.severity is Severity.WARNING] == ["PL042"]

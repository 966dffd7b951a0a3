"""The explain verb: a key's value and who set it, a rule's row; every field has a docstring to show."""

import pytest

from launcher.__main__ import main
from launcher.compose import compose
from launcher.errors import ConfigError, ExitCode
from launcher.explain import explain_code, explain_key, field_docstring
from launcher.keys import keys_of
from launcher.node_tables import tables
from launcher.requirement import Condition, Equals, OneOf, Requirement, Severity
from launcher.sweep.expand import EXAMPLES

SIZE = "parallelism.tensor_model_parallel_size"
RULES = (
    Requirement(code="XY001", key=SIZE, want=Equals(1), why="because of that", source="a paper, page 3"),
    Requirement(
        code="XY002",
        key="parallelism.sequence_parallel",
        want=OneOf((False,)),
        why="it is slow",
        source="megatron-core 0.19.2 x.py",
        when=Condition(who="zero-KL", text="zero_kl.required", test=lambda _: True),
        severity=Severity.WARNING,
        reads=(SIZE,),
    ),
    Requirement(code="XY003", key="job.seed", want=Equals(1), why="other", source="other"),
)

# the words, the key -> who set it
SET_BY: list[tuple[list[str], str, str]] = [
    ([], "job.num_steps", "the default of JobConfig"),
    ([], "optimizer.scheduler.lr_decay_iters", "the default of SchedulerConfig"),
    ([], "force", "the default of RunConfig"),
    ([], "job.kind", "conf/job/mismatch.yaml, chosen by conf/config.yaml"),
    ([], "model.hf_config.hidden_size", "conf/model/tiny.yaml, chosen by conf/config.yaml"),
    (["parallelism=tp2"], SIZE, "conf/parallelism/tp2.yaml, chosen by the command line, parallelism=tp2"),
    (["parallelism=tp2", f"{SIZE}=4"], SIZE, f"the command line, {SIZE}=4"),
    (
        ["parallelism={tensor_model_parallel_size:4}"],
        SIZE,
        "the command line, parallelism={tensor_model_parallel_size:4}",
    ),
    (["parallelism={sequence_parallel:true}"], SIZE, "the default of ParallelismConfig"),
    (["+preset=zero_kl"], "performance.flash_attention_version", "conf/preset/zero_kl.yaml"),
    (["+preset=zero_kl"], "cluster.kind", "conf/cluster/slurm.yaml, chosen by conf/preset/zero_kl.yaml"),
    (["+preset=zero_kl", "zero_kl.required=false"], "zero_kl.required", "the command line, zero_kl.required=false"),
    (["model=/tmp"], "model.hf_path", "the command line, model=/tmp"),
    (
        ["+model.hf_config.rope_theta=1"],
        "model.hf_config.rope_theta",
        "the command line, +model.hf_config.rope_theta=1",
    ),
]


@pytest.mark.parametrize(("words", "key", "who"), SET_BY, ids=lambda value: str(value))
def test_who_set_it(words: list[str], key: str, who: str) -> None:
    lines = explain_key(key, composed=compose(words), rules=RULES).splitlines()
    assert f"  set by:  {who}" in lines


def test_all_that_is_known_of_a_key() -> None:
    assert explain_key(SIZE, composed=compose([f"{SIZE}=2"]), rules=RULES) == "\n".join(
        (
            f"{SIZE} = 2",
            "  type:    int",
            "  default: 1",
            f"  about:   {field_docstring(keys_of()[SIZE])}",
            f"  set by:  the command line, {SIZE}=2",
            f"  rules:   XY001 ({SIZE} needs 1; always)",
            "           XY002 (parallelism.sequence_parallel needs false; zero_kl.required)",
        )
    )


def test_a_key_without_rules_and_without_default() -> None:
    text = explain_key("platform.kind", composed=compose([]), rules=RULES)
    assert "platform.kind = cpu" in text
    assert "type:    one of cpu, hopper, blackwell" in text
    assert "default: none" in text
    assert "rules:   none" in text


def test_a_group_shows_its_keys_and_what_differs() -> None:
    lines = explain_key("parallelism", composed=compose(["parallelism=tp2"]), rules=RULES).splitlines()
    assert lines[0].startswith("parallelism=tp2, of ")
    assert f"  {SIZE} = 2  (default 1)" in lines
    assert "  parallelism.expert_tensor_parallel_size = null" in lines


def test_presets_are_explained_as_a_group() -> None:
    assert explain_key("preset", composed=compose([]), rules=RULES).startswith("preset=none, of zero_kl, ")
    assert explain_key("preset", composed=compose(["+preset=zero_kl_cpu"]), rules=RULES).startswith(
        "preset=zero_kl_cpu,"
    )


@pytest.mark.parametrize(
    ("key", "fragments"),
    [
        ("parallelism.tensor_parallel", (f"near:   {SIZE},", f"hint: {SIZE}")),
        ("model.hf_config.nothing", ("is not a key", "model.hf_config")),
        ("xyzzy", ("xyzzy is not a key", "groups:", "parallelism")),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest(key: str, fragments: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        explain_key(key, composed=compose([]), rules=RULES)
    for fragment in fragments:
        assert fragment in str(caught.value)


@pytest.mark.parametrize("code", ["XY002", "xy002"])
def test_a_rule_in_full(code: str) -> None:
    assert explain_code(code, rules=RULES) == "\n".join(
        (
            "warning[XY002]: parallelism.sequence_parallel",
            "  needs:  false",
            "  when:   zero_kl.required",
            "  for:    zero-KL",
            "  why:    it is slow",
            "  source: megatron-core 0.19.2 x.py",
            f"  reads:  parallelism.sequence_parallel, {SIZE}",
        )
    )


@pytest.mark.parametrize("code", [code for table in tables() for code in table.by_column()])
def test_a_row_about_a_node_in_full(code: str) -> None:
    text = explain_code(code, rules=())
    assert text.startswith(f"{code}: ")
    for line in ("  why:", "  source:"):
        assert line in text


def test_an_unknown_code_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"no rule is called XY02\n  near:   XY002"):
        explain_code("XY02", rules=RULES)


@pytest.mark.parametrize("word", EXAMPLES)
def test_the_words_of_a_sweep_are_explained(word: str) -> None:
    text = explain_key(word, composed=compose([]), rules=RULES)
    assert text.startswith(f"{word}, a word of a sweep (-m)\n  about:   ")
    assert EXAMPLES[word] in text


@pytest.mark.parametrize("code", ["CL010", "cl010"])
def test_the_verb_takes_a_code_in_any_case(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", code]) == ExitCode.OK
    assert capsys.readouterr().out.startswith("error[CL010]: cluster.nodes\n")


def test_every_field_has_a_docstring() -> None:
    assert [name for name, key in keys_of().items() if not field_docstring(key)] == []

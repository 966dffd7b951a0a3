"""The environment that generation wants, and graphs that the engine has not; the rules are tested in test_tables.py."""

import pytest

from launcher.compose import compose
from launcher.requirement import Subject, check_all
from megatron_setup.generation import GRAPH_ROWS, environment

ELSEWHERE = "generation.colocated=false"


@pytest.mark.parametrize(
    ("words", "variables"),
    [
        (["platform=hopper", ELSEWHERE], {"NCCL_CUMEM_ENABLE": "1"}),
        (["platform=hopper"], {}),
        ([ELSEWHERE], {}),
    ],
    ids=["elsewhere", "colocated", "cpu"],
)
def test_cumem_buffers_where_weights_travel(words: list[str], variables: dict[str, str]) -> None:
    assert environment(compose(words).config) == variables


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["generation=graphs"], ("generation.cuda_graph_impl=local",)),
        ([], ("generation.cuda_graph_impl=none",)),
        (
            ["generation.num_cuda_graphs=4"],
            ("generation.cuda_graph_impl=none", "generation.num_cuda_graphs=0"),
        ),
    ],
)
def test_other_graphs_are_one_error(words: list[str], hint: tuple[str, ...]) -> None:
    """The rows about settings that nothing reads are silent: there would be graphs."""
    config = compose(["platform=hopper", *words, "generation.cuda_graph_impl=full_iteration"]).config
    [found] = check_all(GRAPH_ROWS, subject=Subject(config=config, architecture=None))
    assert found.row.code == "GE006"
    assert found.finding.hints == hint

"""The environment that generation wants; the rules are tested in test_tables.py."""

import pytest

from launcher.compose import compose
from megatron_setup.generation import environment

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

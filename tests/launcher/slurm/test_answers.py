"""Slurm's answers, as a real 22.05 gave them; and those forms of them that its manuals promise."""

from pathlib import Path

import pytest

from launcher.slurm.answers import (
    count_gpus,
    parse_block_size,
    parse_config,
    parse_limit,
    parse_partitions,
    parse_version,
)

RECORDED = Path(__file__).with_name("answers")


def test_the_controllers_configuration() -> None:
    config = parse_config((RECORDED / "config.txt").read_text())
    assert config["ClusterName"] == "pretend"
    assert config["MaxArraySize"] == "1001"
    assert config["TaskPluginParam"] == "(null type)"
    assert parse_version(config) == (22, 5)


def test_no_configuration_has_no_version() -> None:
    assert parse_version(parse_config("")) is None


def test_partitions() -> None:
    """One is down; dgx3 is drained, so sinfo says it in a row of its own with another state."""
    found = {each.name: each for each in parse_partitions((RECORDED / "sinfo.txt").read_text())}
    assert list(found) == ["batch", "gpu", "short", "debug", "high"]
    assert [name for name, each in found.items() if each.is_default] == ["debug"]
    assert [each.limit_min for each in found.values()] == [2880, 240, 30, None, None]
    assert found["high"].preempt_mode == "OFF"
    assert [(kind.nodes, kind.cpus, kind.gpus) for kind in found["gpu"].kinds] == [
        (12, 224, 8),
        (3, 128, 6),
        (1, 64, 0),
    ]
    assert found["gpu"].gpu_nodes == 15
    assert found["batch"].usual_node.gpus == 0


def test_nodes_that_differ_in_state_are_of_one_kind() -> None:
    rows = "gpu|up|1:00:00|OFF|3|8|1000|gpu:4\ngpu|up|1:00:00|OFF|2|8|1000|gpu:4\n"
    (partition,) = parse_partitions(rows)
    assert [kind.nodes for kind in partition.kinds] == [5]


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("(null)", 0),
        ("gpu", 1),
        ("gpu:8", 8),
        ("gpu:h100:8", 8),
        ("gpu:h100:8(S:0-1)", 8),
        ("gpu:a100:4,gpu:t4:2", 6),
        ("gpu:a100:4(S:0,2),craynetwork:4", 4),
        ("fpga:2", 0),
    ],
)
def test_gpus_of_a_gres(gres: str, gpus: int) -> None:
    assert count_gpus(gres) == gpus


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("infinite", None), ("30:00", 30), ("4:00:00", 240), ("2-00:00:00", 2880), ("1-02:03:04", 1563)],
)
def test_time_limits(text: str, minutes: int | None) -> None:
    assert parse_limit(text) == minutes


def test_blocks_of_the_topology() -> None:
    """The form of Slurm 24.05; the topology here has none, and a tree has switches."""
    blocks = (
        "BlockName=b1 BlockIndex=0 Nodes=node[01-18] BlockSize=18\n"
        "BlockName=b2 BlockIndex=1 Nodes=node[19-36] BlockSize=18\n"
        "AggregatedBlock=b[1-2] BlockIndex=2 BlockSize=36 Nodes=node[01-36]\n"
    )
    assert parse_block_size(blocks) == 18
    assert parse_block_size("SwitchName=s0 Level=0 LinkSpeed=1 Nodes=node[1-4]\n") is None
    assert parse_block_size("") is None

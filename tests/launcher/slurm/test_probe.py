"""What a probe makes of a cluster's answers: table, profile, partition; and programs that do not answer."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from launcher.errors import ConfigError, ExitCode, SubmissionError
from launcher.keys import keys_of
from launcher.slurm import probe
from launcher.slurm.probe import Answers, ask_cluster, read_facts
from launcher.slurm.profile import Fact, profile_name, profile_text, render_facts, write_profile
from launcher.slurm.queue import UnreachableError
from tests.launcher.runs import ROOT
from tests.plugin_golden import Golden

RECORDED = Path(__file__).with_name("answers")
HERE = Answers(
    config=(RECORDED / "config.txt").read_text(),
    partitions=(RECORDED / "sinfo.txt").read_text(),
    topology="",
    account="root\n",
    ports="32768\t60999\n",
)
NVL72 = replace(
    HERE,
    config=HERE.config.replace("22.05.8", "24.11.5"),
    topology="BlockName=b1 BlockIndex=0 Nodes=node[1-18] BlockSize=18\n",
)


def keys(facts: list[Fact]) -> dict[str, str | int | None]:
    return {fact.key: fact.value for fact in facts if fact.key}


@pytest.mark.parametrize("partition", [None, "gpu"])
def test_table_and_profile(partition: str | None, golden: Golden) -> None:
    facts = read_facts(HERE, partition=partition)
    table = render_facts(facts)
    assert max(map(len, table.splitlines())) <= 80
    golden(f"{table}\n\n{profile_text(facts, name='pretend')}".rstrip(), name=f"probe/{partition or 'default'}.txt")


def test_a_profile_holds_what_was_found() -> None:
    """As YAML reads it; each is a key of the group."""
    facts = read_facts(NVL72, partition="short")
    held = yaml.safe_load(profile_text(facts, name="pretend"))
    assert held == {"kind": "slurm", **keys(facts)}
    assert held["timeout_min"] == held["max_timeout_min"] == 30
    assert held["nodes_per_nvlink_domain"] == 18
    assert {f"cluster.{key}" for key in held} <= set(keys_of())


def test_an_old_slurm_takes_no_segment() -> None:
    facts = read_facts(replace(NVL72, config=HERE.config), partition=None)
    assert "nodes_per_nvlink_domain" not in keys(facts)
    assert any("older than 24.05" in fact.found for fact in facts)


@pytest.mark.parametrize(
    ("rows", "chosen"),
    [
        (
            "cpu*|up|infinite|OFF|9|8|1000|(null)\nbig|up|infinite|OFF|8|8|1000|gpu:8\nold|up|infinite|OFF|2|8|1|gpu:2",
            "big",
        ),
        ("gpu*|up|infinite|OFF|1|8|1000|gpu:8\nbig|up|infinite|OFF|8|8|1000|gpu:8", "gpu"),
        ("a|up|infinite|OFF|9|8|1000|(null)\nb*|up|infinite|OFF|2|8|1000|(null)", "b"),
    ],
)
def test_the_default_partition_unless_it_has_no_gpus(rows: str, chosen: str) -> None:
    assert keys(read_facts(replace(HERE, partitions=rows), partition=None))["partition"] == chosen


def test_a_partition_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"no partition is called gp; .*\nhint: partition=gpu"):
        read_facts(HERE, partition="gp")


def test_what_does_not_answer_is_said_and_stops_nothing(tmp_path: Path) -> None:
    """sacctmgr is missing, the topology is refused; nothing is then said of segments."""

    def ask(*command: str) -> str:
        if command[0] == "sacctmgr":
            raise SubmissionError("error: there is no sacctmgr here\nhint: ask on a machine of the cluster")
        if command[-1] == "topology":
            raise SubmissionError("error: scontrol failed: Access denied")
        return HERE.partitions if command[0] == "sinfo" else HERE.config

    answers = ask_cluster(ask, ports=tmp_path / "none")
    assert answers.silent == ("scontrol failed: Access denied", "there is no sacctmgr here")
    facts = read_facts(answers, partition=None)
    assert {"account", "segments", "fixed ports"}.isdisjoint(fact.label for fact in facts)
    assert keys(facts)["gpus_per_node"] == 8


def test_a_profile_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    write_profile(path, text="kind: slurm\n", force=False)
    with pytest.raises(ConfigError, match=r"exists\nhint: force=true"):
        write_profile(path, text="kind: local\n", force=False)
    assert path.read_text() == "kind: slurm\n"
    write_profile(path, text="kind: local\n", force=True)
    assert path.read_text() == "kind: local\n"


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(SubmissionError, match="the profile cannot be written"):
        write_profile(tmp_path / "none" / "mine.yaml", text="", force=False)


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b", "-m", "a.b", "7", "1e5", "true", "null", "inf"])
def test_names_that_hydra_could_not_read(name: str) -> None:
    with pytest.raises(ConfigError, match="is no name of a profile"):
        profile_name(name)


@pytest.mark.parametrize("words", [["a", "b"], ["partion=gpu"], ["force=yes"]])
def test_words_that_mean_nothing(words: list[str]) -> None:
    with pytest.raises(ConfigError, match="probe takes a name"):
        probe.probe(words)


@pytest.mark.parametrize("name", ["mine", "h200", "7b", "null_", "big-one"])
def test_names_that_hydra_reads(name: str) -> None:
    assert profile_name(name) == name


def test_a_controller_that_is_down_is_asked_once(tmp_path: Path) -> None:
    """Every program waits for it, most of a minute each."""
    asked: list[str] = []

    def ask(*command: str) -> str:
        asked.append(command[0])
        raise UnreachableError("error: scontrol failed: Unable to contact slurm controller (connect failure)")

    with pytest.raises(SubmissionError, match=r"Unable to contact .*\nhint: is Slurm's controller up"):
        ask_cluster(ask, ports=tmp_path / "none")
    assert asked == ["scontrol"]


def test_accounts_that_do_not_answer_stop_nothing(tmp_path: Path) -> None:
    """They are another daemon's."""

    def ask(*command: str) -> str:
        if command[0] == "sacctmgr":
            raise UnreachableError("error: sacctmgr did not answer within 30 s")
        return HERE.partitions if command[0] == "sinfo" else HERE.config

    assert ask_cluster(ask, ports=tmp_path / "none").silent == ("sacctmgr did not answer within 30 s",)


def test_a_laptop_has_no_slurm() -> None:
    words = [sys.executable, "-m", "launcher", "probe"]
    done = subprocess.run(words, cwd=ROOT, env={"PATH": "/nowhere"}, capture_output=True, text=True, check=False)
    assert done.returncode == ExitCode.SUBMISSION
    assert done.stdout.count("not answered: there is no ") == 3
    assert "no program of Slurm answered" in done.stderr

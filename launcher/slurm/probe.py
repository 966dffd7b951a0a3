"""`python -m launcher probe [NAME]`: asks a live cluster and writes what it found as conf/cluster/NAME.yaml.

Owns the questions, and the choice among partitions. What a fact becomes is `launcher.slurm.profile`'s.
"""

from __future__ import annotations

import getpass
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.compose import CONF
from launcher.errors import ConfigError, ExitCode, SubmissionError
from launcher.schema.cluster import ClusterConfig
from launcher.slurm.answers import (
    SINFO_FORMAT,
    Partition,
    parse_block_size,
    parse_config,
    parse_partitions,
    parse_version,
)
from launcher.slurm.profile import Fact, profile_name, profile_text, render_facts, write_profile
from launcher.slurm.queue import UnreachableError, answer_of
from launcher.suggest import nearest

Ask = Callable[..., str]
"""From the words of a command to what it prints; raises SubmissionError, as `answer_of`."""

_FIRST_WITH_SEGMENTS = (24, 5)
_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What the programs printed; "" where one did not answer, and `silent` says why."""

    config: str = ""
    partitions: str = ""
    topology: str | None = None
    """None where it is not known; "" says that there is none."""

    account: str = ""
    ports: str = ""
    silent: tuple[str, ...] = ()


_UNREACHABLE_HINT = "hint: is Slurm's controller up (scontrol ping), and does SLURM_CONF, if set, name a file to read?"
_OPTIONS = ("partition", "force")


def probe(words: Sequence[str]) -> ExitCode:
    """Print what the cluster says and write the profile, called NAME or as the cluster is. Raises LauncherError's."""
    options = {name: value for name, sign, value in (word.partition("=") for word in words) if sign}
    names = [word for word in words if "=" not in word]
    unknown = [name for name in options if name not in _OPTIONS]
    if unknown or len(names) > 1 or options.get("force") not in (None, "true", "false"):
        raise ConfigError(
            "error: probe takes a name, partition=NAME and force=true\nhint: python -m launcher probe mine"
        )
    answers = ask_cluster()
    facts = read_facts(answers, partition=options.get("partition"))
    for line in answers.silent:
        print(f"not answered: {line}")
    if not any(fact.key for fact in facts):
        raise SubmissionError("error: no program of Slurm answered\nhint: probe from a machine of the cluster")
    name = profile_name(names[0] if names else parse_config(answers.config).get("ClusterName", "mine"))
    print(render_facts(facts))
    path = CONF / "cluster" / f"{name}.yaml"
    write_profile(path, text=profile_text(facts, name=name), force=options.get("force") == "true")
    print(f"\nwritten: {path}\nuse it:  python -m launcher plan cluster={name}")
    return ExitCode.OK


def ask_cluster(ask: Ask = answer_of, *, ports: Path = _PORTS) -> Answers:
    """Every question to this machine's cluster; a program that is missing or refuses stops no other.

    Raises UnreachableError where the controller does not answer: every further question would wait as long for it.
    """
    silent: list[str] = []

    def tolerant(*command: str) -> str | None:
        try:
            return ask(*command)
        except SubmissionError as error:
            if isinstance(error, UnreachableError) and command[0] != "sacctmgr":  # that one asks slurmdbd
                raise UnreachableError(f"{error}\n{_UNREACHABLE_HINT}") from None
            silent.append(str(error).removeprefix("error: ").partition("\n")[0])
            return None

    user = ("show", "user", getpass.getuser(), "format=DefaultAccount")
    return Answers(
        config=tolerant("scontrol", "show", "config") or "",
        partitions=tolerant("sinfo", "--noheader", "--exact", f"--format={SINFO_FORMAT}") or "",
        topology=tolerant("scontrol", "show", "topology"),
        account=tolerant("sacctmgr", "--noheader", "--parsable2", *user) or "",
        ports=ports.read_text() if ports.exists() else "",
        silent=tuple(dict.fromkeys(silent)),
    )


def read_facts(answers: Answers, *, partition: str | None) -> list[Fact]:
    """What the answers say of the cluster, and of the partition: the named one, else the default one where it has
    GPUs, else the one with the most nodes that have. Raises ConfigError for a partition that is not there."""
    partitions = parse_partitions(answers.partitions)
    return [
        *_of_controller(answers),
        *_of_partitions(partitions, name=partition),
        *_of_user(answers),
        *_of_topology(answers),
        *_of_ports(answers.ports),
    ]


def _of_controller(answers: Answers) -> Iterator[Fact]:
    config, source = parse_config(answers.config), "scontrol show config"
    if not config:
        return
    yield Fact("cluster", f"{config['ClusterName']}, Slurm {config['SLURM_VERSION']}", source=source)
    size = int(config["MaxArraySize"])
    yield Fact("array size", f"at most {size} runs in one array", source=source, key="max_array_size", value=size)
    yield Fact("preemption", f"{config['PreemptType']}, {config['PreemptMode']}", source=source)
    works = "works" if "task/affinity" in config["TaskPlugin"] else "does nothing"
    yield Fact("binding", f"{config['TaskPlugin']}: cluster.cpu_bind {works}", source=source)


def _choose(partitions: Sequence[Partition], *, name: str | None) -> Partition:
    if name is not None:
        found = [each for each in partitions if each.name == name]
        if not found:
            there = nearest(name, names=[each.name for each in partitions])
            text = f"error: no partition is called {name}; there are {', '.join(there)}"
            raise ConfigError(f"{text}\nhint: partition={there[0]}")
        return found[0]
    return max(partitions, key=lambda each: (each.is_default and each.gpu_nodes > 0, each.gpu_nodes, each.is_default))


def _of_partitions(partitions: Sequence[Partition], *, name: str | None) -> Iterator[Fact]:
    if not partitions:
        return
    chosen = _choose(partitions, name=name)
    yield from _of_partition(chosen)
    others = ", ".join(each.name for each in partitions if each != chosen)
    if others:
        yield Fact("others", f"{others} (partition=NAME)", source="sinfo")


def _of_partition(partition: Partition) -> Iterator[Fact]:
    source, node = "sinfo", partition.usual_node
    default = ", the default one" if partition.is_default else ""
    yield Fact("partition", partition.name + default, source=source, key="partition", value=partition.name)
    kinds = "; ".join(f"{kind.nodes} of {kind.gres}, {kind.cpus} CPUs" for kind in partition.kinds)
    yield Fact("nodes", kinds.replace("(null)", "no Gres"), source=source)
    if node.gpus:
        found = f"{node.gpus} ({node.gres})"
        yield Fact("GPUs of a node", found, source="sinfo, Gres", key="gpus_per_node", value=node.gpus)
        cpus = max(node.cpus // node.gpus, 1)
        yield Fact("CPUs of a rank", f"{node.cpus} / {node.gpus}", source=source, key="cpus_per_task", value=cpus)
    share = f", {node.memory_mb // node.gpus}M a GPU" if node.gpus else ""
    yield Fact("memory", f"{node.memory_mb / 1024:.0f} GiB a node{share}", source=source)
    limit = partition.limit_min
    text = "none" if limit is None else f"{limit} min"
    yield Fact("time limit", text, source=source, key=None if limit is None else "max_timeout_min", value=limit)
    if limit is not None and limit < ClusterConfig.timeout_min:
        yield Fact("time of a run", f"{limit} min, all there is", source=source, key="timeout_min", value=limit)
    yield Fact("its preemption", partition.preempt_mode, source=source)


def _of_user(answers: Answers) -> Iterator[Fact]:
    account = answers.account.partition("\n")[0]  # of a user with none it prints nothing
    if account:
        yield Fact("account", account, source="sacctmgr show user", key="account", value=account)


def _of_topology(answers: Answers) -> Iterator[Fact]:
    """sbatch takes --segment since Slurm 24.05, and only where the topology has blocks."""
    version, source = parse_version(parse_config(answers.config)), "scontrol show topology"
    if version is None or answers.topology is None:
        return
    size = parse_block_size(answers.topology)
    if size is None:
        yield Fact("segments", "no: the topology has no blocks", source=source)
    elif version < _FIRST_WITH_SEGMENTS:
        yield Fact("segments", f"no: blocks of {size} nodes, but Slurm is older than 24.05", source=source)
    else:
        yield Fact("segments", f"blocks of {size} nodes", source=source, key="nodes_per_nvlink_domain", value=size)


def _of_ports(text: str) -> Iterator[Fact]:
    """Nothing is chosen by it: rank 0 binds a port that the kernel gives. For what has a fixed port of its own."""
    if text:
        yield Fact("fixed ports", f"below {text.split()[0]} on this machine", source="ip_local_port_range")

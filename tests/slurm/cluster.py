"""A real Slurm on this one machine: 4 nodes of 16 processors and 8 pretend GPUs, with slurmdbd, so with a true sacct.

Owns starting and ending the daemons. Needs root and the Debian packages of packages.txt; no systemd, no cgroups. Each
node is a slurmd in namespaces of its own: its hostname, /etc/hosts that knows all nodes, its /etc/slurm.
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from string import Template

HERE = Path(__file__).resolve().parent
NODES = tuple(f"node{n}" for n in range(1, 5))
NUM_GPUS, NUM_CPUS, MEMORY_MB = 8, 16, 64000
_SHELL = dict(os.environ)
"""As it is before any test runs: Megatron-Bridge exports NVTE_* of the process that it builds a model in."""

_WAIT_S = 60.0
_FIRST_PORT = 16800


def missing_programs() -> list[str]:
    """What of Slurm and its accounting is not installed here."""
    names = ("munged", "mariadbd", "mariadb-install-db", "slurmdbd", "slurmctld", "slurmd", "sbatch", "sacct")
    folders = ("/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin")
    absent = [name for name in names if not any((Path(folder) / name).exists() for folder in folders)]
    return absent + [path for path in ("/usr/bin/gcc", "/usr/include/slurm/spank.h") if not Path(path).exists()]


class Cluster:
    """The cluster whose files are in `folder`, which everybody must be able to enter: munged insists."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._conf = folder / "etc" / "slurm.conf"
        self._database: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> Mapping[str, str]:
        """What a shell of the cluster exports."""
        return {**_SHELL, "SLURM_CONF": str(self._conf)}

    @property
    def small_disk(self) -> Path:
        """A disk of its own that all nodes see, of 6 MB."""
        return self.folder / "small"

    def start(self) -> None:
        """Start every daemon; returns when all nodes take jobs."""
        self._write_files()
        self.small_disk.mkdir()
        # before the nodes start: a later mount would not be seen in their namespaces
        self._run("mount", "-t", "tmpfs", "-o", "size=6m", "none", str(self.small_disk))
        run = self.folder / "run"
        self._run(
            *("munged", f"--key-file={self.folder}/munge.key", f"--socket={run}/munge.sock"),
            *(f"--pid-file={run}/munged.pid", f"--log-file={self.folder}/log/munged.log"),
            f"--seed-file={run}/munged.seed",
        )
        self._start_database()
        self._run("slurmdbd")
        _wait_for("slurmdbd", lambda: self._answers("sacctmgr", "--noheader", "list", "cluster"))
        self._run("sacctmgr", "--immediate", "add", "cluster", "pretend")
        self.start_controller()
        for node in NODES:
            self.start_node(node)
        _wait_for("idle nodes", self._all_idle)

    def start_node(self, node: str) -> None:
        """Start the node's slurmd, for the first time or after its end."""
        inside = (
            f"hostname {node} && mount --bind {self.folder}/hosts /etc/hosts && mkdir -p /etc/slurm && "
            f"mount --bind {self.folder}/etc /etc/slurm && mount -t tmpfs none /run && exec slurmd -N {node}"
        )
        self._run("unshare", "--uts", "--mount", "--propagation", "slave", "sh", "-c", inside)
        _wait_for(f"slurmd of {node}", self._pid_file(f"slurmd.{node}").exists)

    def start_controller(self) -> None:
        """Start slurmctld, for the first time or after its end, with the state that it saved."""
        self._run("slurmctld")
        _wait_for("slurmctld", lambda: self._answers("scontrol", "ping"))

    def stop_controller(self) -> None:
        """End slurmctld; jobs go on without it."""
        for pid in self._pid("slurmctld"):
            _end(pid)

    def crash_node(self, node: str) -> None:
        """Kill the node's slurmd and all else on it, as a power cut does; `start_node` brings it back."""
        for pid in (*self._pid(f"slurmd.{node}"), *self.processes_of(node)):
            _kill(pid)
        self._pid_file(f"slurmd.{node}").unlink()

    def stop(self) -> None:
        """End what was started, by process: jobs first, then whatever is left on the nodes, then the daemons."""
        subprocess.run(["scancel", "--me"], env=self.environment, check=False, timeout=30)
        for node in NODES:
            for pid in (*self.processes_of(node), *self._pid(f"slurmd.{node}")):
                _kill(pid)
        for name in ("slurmctld", "slurmdbd", "munged"):
            for pid in self._pid(name):
                _end(pid)
        if self._database is not None:
            self._database.terminate()
            self._database.wait(timeout=30)
        if self.small_disk.is_mount():
            self._run("umount", str(self.small_disk))

    def processes_of(self, node: str) -> list[int]:
        """Processes on a node beside its slurmd: those in its namespace of hostnames."""
        daemons = list(self._pid(f"slurmd.{node}"))
        space = next((_hostname_space(pid) for pid in daemons), "")
        assert space != _hostname_space(os.getpid()), f"{node} has no namespace of its own"
        numbers = (int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit())
        return [
            pid for pid in numbers if space and pid not in daemons and _hostname_space(pid) == space and _alive(pid)
        ]

    def _write_files(self) -> None:
        for name in ("etc", "run", "log", "state", "spool", "dev", "mysql"):
            (self.folder / name).mkdir()
        for n in range(NUM_GPUS):
            os.mknod(self.folder / "dev" / f"gpu{n}", 0o666 | 0o020000, os.makedev(1, 3))
        (self.folder / "munge.key").touch(mode=0o600)
        (self.folder / "munge.key").write_bytes(os.urandom(128))
        host = socket.gethostname()
        names = (f"localhost {host}", *NODES)
        (self.folder / "hosts").write_text("".join(f"127.0.0.1 {name}\n" for name in names))
        devices = f"{self.folder}/dev/gpu[0-{NUM_GPUS - 1}]"
        (self.folder / "etc" / "gres.conf").write_text(
            f"NodeName={','.join(NODES)} Name=gpu Type=h100 File={devices}\n"
        )
        controller, accounting, database, *ports = _free_ports(3 + len(NODES))
        self._database_port = database
        self._fill("slurm.conf", host=host, controller_port=controller, accounting_port=accounting, nodes=_nodes(ports))
        self._run("gcc", "-shared", "-fPIC", "-o", f"{self.folder}/pyxis.so", str(HERE / "pyxis.c"))
        (self.folder / "etc" / "plugstack.conf").write_text(f"required {self.folder}/pyxis.so\n")
        self._fill("slurmdbd.conf", host=host, accounting_port=accounting, database_port=database)

    def _fill(self, name: str, **values: object) -> None:
        text = Template((HERE / name).read_text()).substitute(values, folder=self.folder)
        path = self.folder / "etc" / name
        path.touch(mode=0o600)
        path.write_text(text)

    def _start_database(self) -> None:
        data, port = self.folder / "mysql", self._database_port
        root = ("--no-defaults", "--user=root", f"--datadir={data}")
        self._run("mariadb-install-db", *root, "--auth-root-authentication-method=normal", "--skip-test-db")
        with (self.folder / "log" / "mariadbd.log").open("wb") as log:
            self._database = subprocess.Popen(
                [
                    *("mariadbd", *root, f"--socket={data}/mysql.sock", f"--pid-file={data}/mariadbd.pid"),
                    *("--bind-address=127.0.0.1", f"--port={port}", "--skip-log-bin", "--skip-name-resolve"),
                    *("--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=0", "--innodb-buffer-pool-size=64M"),
                    "--innodb-lock-wait-timeout=900",
                ],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        client = ("mariadb", "--no-defaults", f"--socket={data}/mysql.sock", "--user=root", "--execute")
        _wait_for("mariadbd", lambda: self._answers(*client, "select 1"))
        self._run(
            *client,
            "create database slurm_acct_db; create user slurm@'127.0.0.1' identified by 'slurm'; "
            "grant all on slurm_acct_db.* to slurm@'127.0.0.1'",
        )

    def _run(self, *command: str) -> str:
        """Output goes to a file and not to a pipe: a daemon would keep the pipe open."""
        log = self.folder / "log" / f"{Path(command[0]).name}.out"
        with log.open("ab") as file:
            done = subprocess.run(command, env=self.environment, stdout=file, stderr=file, check=False, timeout=_WAIT_S)
        assert done.returncode == 0, f"{' '.join(command)}: {log.read_text()[-2000:]}"
        return log.read_text()

    def _answers(self, *command: str) -> bool:
        done = subprocess.run(command, env=self.environment, capture_output=True, check=False, timeout=_WAIT_S)
        return done.returncode == 0

    def _all_idle(self) -> bool:
        command = ("sinfo", "--noheader", "--Node", "--partition=debug", "--format=%T")
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False, timeout=_WAIT_S
        )
        return done.stdout.split() == ["idle"] * len(NODES)

    def _pid_file(self, name: str) -> Path:
        return self.folder / "run" / f"{name}.pid"

    def _pid(self, name: str) -> Iterator[int]:
        """The daemon's process, where it lives."""
        path = self._pid_file(name)
        if path.exists() and (text := path.read_text().strip()) and _alive(int(text)):
            yield int(text)


def _nodes(ports: list[int]) -> str:
    size = f"CPUs={NUM_CPUS} RealMemory={MEMORY_MB} Gres=gpu:h100:{NUM_GPUS} State=UNKNOWN"
    lines = [f"NodeName={n} NodeAddr=127.0.0.1 Port={p} {size}" for n, p in zip(NODES, ports, strict=True)]
    return "\n".join(lines)


def _free_ports(count: int) -> list[int]:
    """Ports that nothing listens on, below those that the kernel deals out; each process begins elsewhere, since two
    clusters may start at once."""
    found: list[int] = []
    first = _FIRST_PORT + os.getpid() % 100 * 20
    for port in range(first, first + 1000):
        with socket.socket() as sock, suppress(OSError):
            sock.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError("no free ports")


def _wait_for(what: str, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not done():
        assert time.monotonic() < deadline, f"no {what} within {_WAIT_S:.0f} s"
        time.sleep(0.1)


def _alive(pid: int) -> bool:
    """A process that exists and is no zombie: process 1 of a container may not reap."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _hostname_space(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/uts")  # noqa: PTH115  pathlib would resolve it
    except OSError:
        return "gone"


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _end(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + 10
    while _alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    _kill(pid)

"""Worlds of gloo ranks for tests: forked from a process that has megatron imported, so a world starts in no time.

`run_world(function, num_ranks=2, ...)` runs the function on every rank and returns the results by rank.
"""

import faulthandler
import multiprocessing
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any

import torch.distributed as dist

_STDERR = 2  # the descriptor: pytest may have put something else in sys.stderr
_GRACE_S = 5.0
"""How long a rank has to end after SIGTERM."""


class RankError(Exception):
    """The first rank that failed, and its traceback."""


@dataclass(frozen=True)
class _Rank:
    rank: int
    process: ForkProcess
    pipe: Connection


@dataclass(frozen=True)
class _Outcome:
    """What a rank sends when it is done: its result, or its traceback."""

    result: Any
    traceback: str = ""
    time_s: float = field(default_factory=time.monotonic)


def run_world[R](
    function: Callable[..., R], *, num_ranks: int, timeout_s: float = 60.0, joined: bool = True, **arguments: Any
) -> list[R]:
    """Run `function(**arguments)` on `num_ranks` gloo ranks and return their (picklable) results, by rank.

    The ranks have RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT set and, where `joined`, torch.distributed
    initialised.
    Raises RankError with the first failing rank's traceback, TimeoutError naming the ranks that hang (their stacks go
    to stderr). In every case no process is left when it returns.
    """
    context = multiprocessing.get_context("fork")
    port = _free_port()
    ranks: list[_Rank] = []
    try:
        for rank in range(num_ranks):
            ours, theirs = context.Pipe(duplex=False)
            environment = _environment(rank=rank, num_ranks=num_ranks, port=port)
            process = context.Process(target=_rank_main, args=(function, arguments, environment, theirs, joined))
            process.start()
            theirs.close()  # the rank has its own copy; ours would keep the pipe open after its death
            ranks.append(_Rank(rank, process, ours))
        results = _collect(ranks, deadline=time.monotonic() + timeout_s)
        for each in ranks:
            each.process.join(_GRACE_S)
        return results
    finally:
        for each in ranks:
            _end(each)


def _environment(*, rank: int, num_ranks: int, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def _rank_main(
    function: Callable[..., Any],
    arguments: dict[str, Any],
    environment: dict[str, str],
    pipe: Connection,
    joined: bool,
) -> None:
    faulthandler.register(signal.SIGUSR1, file=_STDERR)
    os.environ.update(environment)
    try:
        if joined:
            dist.init_process_group("gloo")
        result = function(**arguments)
        if joined:
            dist.barrier()  # a rank that leaves early takes the store and its connections with it
            dist.destroy_process_group()
    except Exception:  # noqa: BLE001 - every failure is raised again in the parent
        pipe.send(_Outcome(None, traceback=traceback.format_exc()))
        raise SystemExit(1) from None
    pipe.send(_Outcome(result))


def _collect(ranks: list[_Rank], *, deadline: float) -> list[Any]:
    results: dict[int, Any] = {}
    while missing := [each for each in ranks if each.rank not in results]:
        ready = wait([each.pipe for each in missing], timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            raise _hanging(missing, num_ranks=len(ranks))
        outcomes = [(each, _receive(each)) for each in missing if each.pipe in ready]
        failed = [(each, outcome) for each, outcome in outcomes if outcome.traceback]
        if failed:
            # a rank's death makes its neighbours fail as well: the first is the one to look at
            first, outcome = min(failed, key=lambda pair: pair[1].time_s)
            raise RankError(f"rank {first.rank} of {len(ranks)}\n{outcome.traceback}")
        results.update({each.rank: outcome.result for each, outcome in outcomes})
    return [results[rank] for rank in range(len(ranks))]


def _receive(each: _Rank) -> _Outcome:
    try:
        return each.pipe.recv()
    except EOFError:
        each.process.join(_GRACE_S)
        return _Outcome(None, traceback=f"died without a word, exit code {each.process.exitcode}")


def _hanging(missing: list[_Rank], *, num_ranks: int) -> TimeoutError:
    for each in missing:
        if each.process.pid:
            os.kill(each.process.pid, signal.SIGUSR1)
    time.sleep(0.5)  # for the stacks to be written
    return TimeoutError(f"ranks {[each.rank for each in missing]} of {num_ranks} hang; their stacks are on stderr")


def _end(each: _Rank) -> None:
    for stop in (each.process.terminate, each.process.kill):
        if each.process.is_alive():
            stop()
            each.process.join(_GRACE_S)
    each.pipe.close()
    each.process.close()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]

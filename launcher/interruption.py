"""Asking a rank to end: SIGUSR2 is Slurm's warning before the time limit, SIGTERM its wish for the nodes.

Owns what a rank does with the two signals, and noting them. On which step all ranks end, and the save, is the job's.
"""

from __future__ import annotations

import signal
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

WARNING, VACATE = signal.SIGUSR2, signal.SIGTERM
_SIGNALS = (WARNING, VACATE)


def end_at_once() -> None:
    """Both signals end this process where it stands: there is nothing to save.

    submitit's own handlers, which are in force before, ignore SIGTERM, so that a rank would live until KillWait (30 s
    on most clusters), and requeue the job from rank 0 by themselves.
    """
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)


@dataclass(kw_only=True)
class Request:
    """What this process has been asked. `number` is the signal's, 0 where none has come; SIGTERM outweighs SIGUSR2."""

    number: int = 0


@contextmanager
def requests_noted(numbers: Sequence[signal.Signals] = _SIGNALS) -> Generator[Request]:
    """Inside the block a signal is noted and nothing else happens; afterwards what was in force before is again."""
    request = Request()

    def note(number: int, _: FrameType | None) -> None:
        request.number = max(request.number, number)

    before = {number: signal.signal(number, note) for number in numbers}
    for number in numbers:
        signal.siginterrupt(number, False)  # the libraries' system calls go on
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def children_spared() -> Generator[None]:
    """Processes started inside the block never get the signals, which Slurm sends to every process of a step.

    A helper of the checkpoint writer that died of the warning would take the save with it that the warning is for. A
    mask is inherited through fork and exec; Python's handlers are not.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

"""What a rank, and a process that it starts, do with the two signals that ask for an end."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from launcher.interruption import children_spared, end_at_once, requests_noted

SIGNALS = (signal.SIGUSR2, signal.SIGTERM)


@pytest.fixture(autouse=True)
def handlers_restored() -> object:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def ended_by(function: Callable[[], None]) -> int:
    """The signal that ends a process that runs the function; 0 where none does."""
    pid = os.fork()
    if pid == 0:
        function()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("number", SIGNALS)
def test_a_rank_without_steps_ends_at_once(number: signal.Signals) -> None:
    """submitit's handlers were in force before."""

    def rank() -> None:
        signal.signal(number, lambda *_: None)
        end_at_once()
        os.kill(os.getpid(), number)

    assert ended_by(rank) == -number


def test_a_request_is_noted_and_the_handlers_are_restored() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with requests_noted() as request:
        assert request.number == 0
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGUSR2)
        assert request.number == signal.SIGTERM
    assert [signal.getsignal(number) for number in SIGNALS] == before


@pytest.mark.parametrize("number", SIGNALS)
def test_only_a_spared_child_outlives_the_signals(number: signal.Signals) -> None:
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with children_spared():
        spared = subprocess.Popen(command, stdin=subprocess.PIPE)
    other = subprocess.Popen(command, stdin=subprocess.PIPE)
    for child in (spared, other):
        child.send_signal(number)
        child.communicate()
    assert (spared.returncode, other.returncode) == (0, -number)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) & set(SIGNALS) == set()

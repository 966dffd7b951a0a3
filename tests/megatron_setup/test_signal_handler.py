"""Megatron-Bridge's signal handler off the main thread. Nothing of ours: 0.6.2 has the fix of its pull request 4375.

Our pipeline never installs it (`ConfigContainer.train.exit_signal_handler` is off); a version without the fix would
raise ValueError from `GlobalState.signal_handler` wherever a job sets Megatron up in a thread.
"""

import signal
import threading
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.usefixtures("cpu_platform")


def _in_thread(function: Callable[[], None]) -> list[BaseException]:
    raised: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except ValueError as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return raised


def _install_and_release() -> None:
    from megatron.bridge.training.utils.sig_utils import DistributedSignalHandler

    with DistributedSignalHandler(signal.SIGUSR2):
        pass


def test_off_the_main_thread_nothing_is_installed() -> None:
    before = signal.getsignal(signal.SIGUSR2)
    assert _in_thread(_install_and_release) == []
    assert signal.getsignal(signal.SIGUSR2) == before


def test_python_itself_refuses_there() -> None:
    (error,) = _in_thread(lambda: signal.signal(signal.SIGUSR2, signal.SIG_DFL) and None)
    assert "main thread" in str(error)


def test_on_the_main_thread_it_is_installed_and_restored() -> None:
    from megatron.bridge.training.utils.sig_utils import DistributedSignalHandler

    before = signal.getsignal(signal.SIGUSR2)
    with DistributedSignalHandler(signal.SIGUSR2) as handler:
        assert signal.getsignal(signal.SIGUSR2) != before
        signal.raise_signal(signal.SIGUSR2)
        assert handler._signal_received
    assert signal.getsignal(signal.SIGUSR2) == before

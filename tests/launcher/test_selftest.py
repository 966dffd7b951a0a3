"""The command: what it refuses before it imports torch, and the table it prints."""

import pytest
from rich.console import Console

from launcher.errors import ExitCode
from launcher.selftest import main, render


def test_a_wrong_configuration_exits_2() -> None:
    assert main(["model=tyni"]) == ExitCode.CONFIG


def test_a_variable_that_fights_the_run_exits_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    assert main(["+preset=zero_kl_hopper", "cluster=local"]) == ExitCode.ENVIRONMENT
    assert "error[ZE001]: CUBLAS_WORKSPACE_CONFIG is exported as :4096:8" in capsys.readouterr().err


@pytest.mark.usefixtures("cpu_platform")
def test_the_table_says_what_was_found() -> None:
    from zero_kl.selftest.runner import Outcome
    from zero_kl.selftest.table import CHECKS

    outcomes = [
        Outcome(check=CHECKS[0], seconds=0.25, found=None),
        Outcome(check=CHECKS[1], seconds=1.0, found="the workspaces have [33554432] bytes, not 0"),
    ]
    console = Console(width=100)
    with console.capture() as printed:
        console.print(render(outcomes))
    text = printed.get()
    assert "2 checks in 1.2 s, 1 failed" in text
    assert "holds" in text
    assert "GEMM workspace   1.00   the workspaces have [33554432] bytes, not 0" in text

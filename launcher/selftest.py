"""The node's self-test alone: `python -m launcher.selftest [overrides]`. Exit 3 where a check fails.

Owns the command and its table; the checks are `zero_kl.selftest`'s.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from launcher.compose import compose
from launcher.environment import apply_environment
from launcher.errors import ExitCode, LauncherError
from launcher.schema import RunConfig
from launcher.validate import read_architecture, validate

if TYPE_CHECKING:
    from zero_kl.selftest.runner import Outcome


def run(config: RunConfig) -> list[Outcome]:
    """Set this process up as a worker's first rank is, and run the checks. Raises NodeError where a gate refuses."""
    apply_environment(config)

    from launcher.jobs import platform  # imports torch: only now is the environment set

    with platform(config, local_rank=0):
        from zero_kl.selftest.runner import self_test

        return self_test(config, architecture=read_architecture(config.model))


def render(outcomes: Sequence[Outcome]) -> Table:
    """One row per check: code, name, seconds, and what it found."""
    seconds = sum(o.seconds for o in outcomes)
    failed = sum(o.found is not None for o in outcomes)
    verdict = f"{failed} failed" if failed else "all hold"
    table = Table(
        box=SIMPLE,
        title=f"{socket.gethostname()}: {len(outcomes)} checks in {seconds:.1f} s, {verdict}",
        title_justify="left",
    )
    for header, justify in (("code", "left"), ("check", "left"), ("s", "right"), ("found", "left")):
        table.add_column(header, justify=justify)  # pyright: ignore[reportArgumentType]
    for outcome in outcomes:
        found = "holds" if outcome.found is None else outcome.found
        style = "green" if outcome.found is None else "red"
        table.add_row(outcome.check.code, outcome.check.name, f"{outcome.seconds:.2f}", found, style=style)
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Compose, refuse or test, print the table; messages for people go to stderr, and their exit code comes back."""
    try:
        config = compose(sys.argv[1:] if arguments is None else arguments).config
        validate(config).raise_if_invalid()
        outcomes = run(config)
    except LauncherError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    Console().print(render(outcomes))
    return ExitCode.ENVIRONMENT if any(o.found is not None for o in outcomes) else ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())

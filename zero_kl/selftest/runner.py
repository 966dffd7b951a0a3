"""Runs the table of checks on this node and says what came of it. Owns no check."""

from __future__ import annotations

import pkgutil
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from launcher.errors import ConfigError, NodeError, blame
from launcher.schema import Architecture, PlatformKind, RunConfig
from zero_kl.selftest.bench import Bench
from zero_kl.selftest.shapes import shapes_of
from zero_kl.selftest.table import CHECKS, Check


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One check: its seconds, and what it found (None: nothing)."""

    check: Check
    seconds: float
    found: str | None


def run_checks(bench: Bench, *, checks: Sequence[Check] = CHECKS) -> list[Outcome]:
    """Every check that applies, in the table's order; none stops the others."""
    with torch.no_grad():
        return [_run(check, bench=bench) for check in checks if check.when.test(bench)]


def self_test(config: RunConfig, *, architecture: Architecture | None) -> list[Outcome]:
    """The checks at the shapes of a run. The platform is set up and the backend's kernels are on.

    Raises ConfigError where the model's shape is not known from a config.json.
    """
    if architecture is None:
        raise ConfigError(
            "error: the model's config.json does not state its shapes, and the self-test runs at the model's own shapes"
        )
    return run_checks(Bench(config, shapes_of(config, architecture=architecture)))


def raise_if_failed(outcomes: Sequence[Outcome]) -> None:
    """Raise NodeError naming this node and every check that found something."""
    failed = [o for o in outcomes if o.found is not None]
    if failed:
        lines = [
            f"error[{o.check.code}]: {o.check.name}: {o.found}\n  why:    {o.check.why}\n  source: {o.check.source}"
            for o in failed
        ]
        host = socket.gethostname()
        raise NodeError("\n\n".join([f"{host} fails its self-test", *lines]) + f"\nhint: {blame(host)}")


def _run(check: Check, *, bench: Bench) -> Outcome:
    function: Callable[[Bench], str | None] = pkgutil.resolve_name(check.run)
    started = time.perf_counter()
    try:
        found = function(bench)
        if bench.config.platform.kind is not PlatformKind.cpu:
            torch.cuda.synchronize()  # a kernel's error belongs to the check that launched it
    except Exception as error:  # noqa: BLE001  a kernel that raises, whatever it raises, is what the check found
        found = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return Outcome(check=check, seconds=time.perf_counter() - started, found=found)

"""The verbs submit, plan and check with -m: expand, judge, show, and start what is to run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from launcher.compose import group_options
from launcher.errors import ConfigError, ExitCode, NodeError, SubmissionError
from launcher.gates import missing_things, read_machine
from launcher.paths import Outputs, SweepPaths
from launcher.schema.cluster import ClusterKind
from launcher.secrets import check_secrets
from launcher.submit import unwritable
from launcher.sweep.arrays import adopt_orphans, only_submitter
from launcher.sweep.expand import Expansion, expand
from launcher.sweep.groups import group_points
from launcher.sweep.points import Point, State, judge, recognise, sweep_digest
from launcher.sweep.report import show_sweep, write_last_page
from launcher.sweep.start import run_in_turn, running_arrays, submit_groups, wait_for_all, write_points
from launcher.sweep.text import render_count, render_judged


def plan_sweep(words: Sequence[str]) -> ExitCode:
    """Print every point's fate and price; starts and writes nothing. Raises ConfigError where no point is valid."""
    expansion = expand(words, options=group_options())
    _show(expansion, points=recognise(judge(expansion)))
    return ExitCode.OK


def start_sweep(words: Sequence[str], *, console: Console) -> ExitCode:
    """Judge all points, then start what is to run. Here: the worst exit code of all. Slurm: fine once it is queued."""
    expansion = expand(words, options=group_options())
    judged = judge(expansion)
    if all(point.state is State.PRUNED for point in judged):
        _show(expansion, points=judged)
    outputs = Outputs(Path(judged[0].config.output_dir))
    sweep = outputs.sweep(sweep_digest(judged))
    try:
        with only_submitter(sweep):
            return _start(expansion, judged=judged, sweep=sweep, outputs=outputs, console=console)
    except OSError as error:
        raise unwritable(judged[0].config, error=error) from None


def _start(
    expansion: Expansion, *, judged: Sequence[Point], sweep: SweepPaths, outputs: Outputs, console: Console
) -> ExitCode:
    on_slurm = judged[0].config.cluster.kind is ClusterKind.slurm
    for array in adopt_orphans(outputs, own=sweep) if on_slurm else ():
        print(f"found in Slurm, of a launcher that was killed: job {array.job}", end="\n\n")
    points = recognise(judged)
    _show(expansion, points=points)
    _check_start(points)
    if on_slurm:
        return _queue(expansion, points=points, sweep=sweep, console=console)
    attempts = run_in_turn([p for p in points if p.state is State.NEW], console=console)
    write_points(expansion, points=points, sweep=sweep, attempts=attempts, refused={})
    return _show_results(points, sweep=sweep, console=console)


def _show(expansion: Expansion, *, points: Sequence[Point]) -> None:
    """Print every point's fate; raises ConfigError where all are pruned."""
    print(render_judged(expansion, points=points, groups=group_points(points)))
    if all(point.state is State.PRUNED for point in points):
        raise ConfigError("error: no point of the sweep is valid; each reason says what to type instead")


def _check_start(points: Sequence[Point]) -> None:
    """What a single run is asked before it starts, for all that are to run. Raises NodeError or ConfigError."""
    machine = read_machine()
    missing: dict[str, None] = {}
    for point in points:
        if point.state is State.NEW:
            check_secrets(point.config, overrides=point.composed.overrides, exported=os.environ)
            missing |= dict.fromkeys(missing_things(point.config, machine=machine))
    if missing:
        raise NodeError("\n".join([f"environment refused: {len(missing)} thing(s) are missing", *missing]))


def _queue(expansion: Expansion, *, points: Sequence[Point], sweep: SweepPaths, console: Console) -> ExitCode:
    done = submit_groups(group_points(points), sweep=sweep, outputs=sweep.outputs, after=running_arrays(points))
    write_points(expansion, points=points, sweep=sweep, attempts=done.attempts, refused=done.refused)
    write_last_page(sweep)  # where the last of them ended before the points were written, or nothing was to be run
    for array in done.arrays:
        console.print(f"submitted job {array.job}: {len(array.attempts)} run(s)", highlight=False)
    print(render_count(points, verb="submitted" if not done.refusals else "to submit"))
    print(f"sweep: {sweep.root}\nthen: python -m launcher (status | report | cancel) {sweep.root}")
    if done.refusals:
        left = sum(p.state is State.NEW for p in points) - len(done.attempts)
        head = f"error: {left} run(s) were not submitted; the same words submit them again"
        raise SubmissionError("\n\n".join([head, *dict.fromkeys(done.refusals)]))
    if not points[0].config.cluster.wait:
        return ExitCode.OK
    wait_for_all([*done.attempts.values(), *(p.attempt for p in points if p.attempt is not None)])
    return _show_results(points, sweep=sweep, console=console)


def _show_results(points: Sequence[Point], *, sweep: SweepPaths, console: Console) -> ExitCode:
    """The results of all points, ran they now or before; the worst exit code."""
    code = show_sweep(sweep, console=console)
    print(f"\n{render_count(points, verb='run')}")
    return code

"""The verbs with effects: start a run and stay with it, find finished ones, show their verdicts."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from launcher.compose import Composed, compose
from launcher.environment import check_environment
from launcher.errors import ConfigError, ExitCode, NodeError, SubmissionError
from launcher.paths import AttemptPaths, Outputs
from launcher.plan import Plan, make_plan, render_plan
from launcher.requirement import render
from launcher.schema import RunConfig
from launcher.schema.cluster import ClusterKind
from launcher.secrets import check_secrets
from launcher.selection import outputs_among, select_one, sweep_named
from launcher.stages import render_stages
from launcher.status import Row, last_event, rows_of
from launcher.steps import read_steps, render_steps
from launcher.validate import Validation, validate
from zero_kl.console import render as render_report
from zero_kl.console import side_by_side
from zero_kl.verdict import Report, read_report

_WATCH = "then: python -m launcher (status | logs -f | cancel) {folder}"


def start_run(overrides: Sequence[str], *, console: Console) -> ExitCode:
    """Compose, refuse or start. Raises LauncherError's kinds; returns the verdict's exit code."""
    composed = compose(overrides)
    validation = validate(composed.config)
    validation.raise_if_invalid()
    check_environment(composed.config)
    check_secrets(composed.config, overrides=composed.overrides, exported=os.environ)
    plan = make_plan(composed.config, validation=validation)
    _print_head(validation, plan=plan, composed=composed, console=console)
    offered = None if composed.config.force else _offer(plan, console=console)
    return _run_new(composed, plan=plan, console=console) if offered is None else offered


def _print_head(validation: Validation, *, plan: Plan, composed: Composed, console: Console) -> None:
    for warning in validation.warnings:
        console.print(render(warning), markup=False, highlight=False)
    console.print(f"configuration holds: {validation.num_checked} rules checked", style="green", highlight=False)
    console.print(render_plan(plan, overrides=composed.overrides), markup=False, highlight=False, soft_wrap=True)


def _offer(plan: Plan, *, console: Console) -> ExitCode | None:
    """The verdict of an identical finished run; None where there is none. Raises SubmissionError for a running one."""
    from launcher.submit import finished_attempt, running_attempt
    from launcher.sweep.arrays import adopt_orphans

    adopt_orphans(Outputs(plan.run.root.parent), run=plan.run)
    running = running_attempt(plan.run)
    if running:
        raise SubmissionError(
            f"error: the same run is running in {running.root}\n"
            f"hint: python -m launcher (status | logs -f | cancel) {running.root}\n"
            f"hint: force=true runs it a second time beside that one"
        )
    done = finished_attempt(plan.run)
    if done is None:
        if any(attempt.outcome.exists() for attempt in plan.run.attempts()):
            text = "there are attempts that failed, or ran with other code or packages; one more is made"
            console.print(text, style="yellow", highlight=False)
        return None
    console.print(f"finished before: {done.root} (force=true repeats it)", style="yellow", soft_wrap=True)
    return _show(done, console=console)


def _run_new(composed: Composed, *, plan: Plan, console: Console) -> ExitCode:
    from launcher.gates import check_machine
    from launcher.submit import start_local, write_attempt
    from launcher.watch import watch_local

    paths = write_attempt(composed, plan=plan)
    refusals = check_machine(composed.config)
    if refusals:
        raise NodeError(_refused(refusals, paths=paths))
    if composed.config.cluster.kind is ClusterKind.slurm:
        return _queue(composed.config, paths=paths, plan=plan, console=console)
    job = start_local(paths, plan=plan)
    console.print(f"started {plan.layout.world_size} rank(s); logs: {paths.logs}", soft_wrap=True, highlight=False)
    watch_local(job, paths=paths, num_ranks=plan.layout.world_size, console=console)
    return _show(paths, console=console)


def _queue(config: RunConfig, *, paths: AttemptPaths, plan: Plan, console: Console) -> ExitCode:
    """Submit to Slurm, say where to look, and leave; stay for the verdict with cluster.wait=true."""
    from launcher.slurm.refused import avoiding
    from launcher.submit import start_slurm
    from launcher.watch import watch_slurm

    config = avoiding(config, run=plan.run)
    job = start_slurm(paths, config=config).job_id
    ranks = f"{plan.num_nodes} node(s) x {plan.processes_per_node} rank(s)"
    avoided = f", not on {config.cluster.exclude}" if config.cluster.exclude is not None else ""
    lines = (
        f"submitted job {job}: {ranks}{avoided}",
        f"log: {paths.log(job, rank=0)}",
        _WATCH.format(folder=paths.root),
    )
    console.print("\n".join(lines), soft_wrap=True, highlight=False)
    if not config.cluster.wait:
        return ExitCode.OK
    watch_slurm(job, paths=paths, console=console)
    return _show(paths, console=console)


def _refused(refusals: Sequence[str], *, paths: AttemptPaths) -> str:
    """The environment's refusal, with what does work on this machine."""
    return "\n".join(
        [
            f"environment refused: {len(refusals)} thing(s) are missing on this machine",
            *(f"  - {line}" for line in refusals),
            f"the plan is written: {paths.plan}",
            "what works here:",
            "  python -m launcher +preset=zero_kl_cpu     (the whole pipeline, on this CPU)",
            "  python -m launcher plan +preset=zero_kl    (what the cluster would be asked for)",
        ]
    )


def _show(paths: AttemptPaths, *, console: Console) -> ExitCode:
    """Print the verdict; exit code 5 where zero was required and not reached. Without one: what there is, and how the
    attempt ended, whose exit code it is."""
    if not paths.report.exists():
        for table in _tables(paths):
            console.print(table)
        (row,) = rows_of([paths])
        console.print(_how_it_is(row, paths=paths), soft_wrap=True, highlight=False, markup=False)
        return ExitCode(row.exit_code or ExitCode.OK)
    report = read_report(paths.report)
    console.print(render_report(report))
    console.print(f"page: {paths.page}", soft_wrap=True, highlight=False)
    return ExitCode.EXPERIMENT if report.required and not report.is_zero else ExitCode.OK


def _how_it_is(row: Row, *, paths: AttemptPaths) -> str:
    """The state and the folder; of a run that did not finish, how far it came and why it ended."""
    last = last_event(paths)
    if row.state == "finished" or last is None:
        return f"{row.state}: {paths.root}"
    where = "step" if last.stage == "train" else f"{last.stage},"
    return f"{row.state} at {where} {last.done} of {last.total}: {paths.root}" + (
        f"\n{row.detail}" if row.detail else ""
    )


def _tables(paths: AttemptPaths) -> list[Table]:
    """What a job without a verdict came to: its steps, or what the set-up took."""
    steps = read_steps(paths.steps)
    if steps:
        return [render_steps(steps)]
    return [render_stages(paths.stages)] if paths.stages.exists() else []


def show_reports(names: Sequence[str], *, console: Console) -> ExitCode:
    """Print one report whole, several side by side, or a sweep's table. `output_dir=` may stand among the names."""
    outputs, words = outputs_among(names)
    sweeps = [sweep for name in words if (sweep := sweep_named(name, outputs=outputs)) is not None]
    if sweeps and len(words) > 1:
        raise ConfigError(f"error: a sweep is reported alone\nhint: python -m launcher report {sweeps[0].root}")
    if sweeps:
        from launcher.sweep.report import show_sweep

        return show_sweep(sweeps[0], console=console)
    found = [select_one(name, outputs=outputs, wanted=_has_report, what="a report") for name in words]
    if len(found) == 1:
        return _show(found[0], console=console)
    without = [paths.root for paths in found if not paths.report.exists()]
    if without:
        raise ConfigError(f"error: {without[0]} has no verdict to stand beside others; it was no job=mismatch")
    reports: list[Report] = [read_report(paths.report) for paths in found]
    console.print(side_by_side(reports))
    return ExitCode.OK


def _has_report(paths: AttemptPaths) -> bool:
    return paths.report.exists() or paths.steps.exists() or paths.stages.exists()

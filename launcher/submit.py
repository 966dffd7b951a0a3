"""From a plan to running ranks: writes the attempt's folder and hands the ranks to a submitit executor."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from submitit import Job, LocalExecutor

from launcher.compose import Composed
from launcher.errors import ExitCode, SubmissionError
from launcher.files import read_json, write_json, write_text
from launcher.going import going
from launcher.outcome import read_outcome, write_outcome
from launcher.paths import AttemptPaths, Outputs, RunPaths
from launcher.plan import Plan
from launcher.provenance import git_state, installed_versions
from launcher.resolved import dump_resolved
from launcher.schema import RunConfig
from launcher.schema.cluster import ClusterKind
from launcher.slurm.code import copy_code
from launcher.slurm.submission import submit_slurm
from launcher.submission import write_submission
from launcher.worker import run_rank


def finished_attempt(run: RunPaths) -> AttemptPaths | None:
    """The newest attempt that ran to its end, whatever its verdict, with the code and the packages of now.

    A changed working tree has no name, so nothing that ran in one, or would run in one, answers for the other.
    """
    versions, git = installed_versions(), git_state()
    for attempt in reversed(run.attempts()):
        outcome = read_outcome(attempt)
        same = read_json(attempt.versions) == versions and read_json(attempt.git) == git and git["tree"] != "changed"
        if outcome and outcome.state == "finished" and same:
            return attempt
    return None


def running_attempt(run: RunPaths) -> AttemptPaths | None:
    """An attempt without an outcome whose launcher or ranks live on this host, or whose job is in Slurm's queue."""
    return running_attempts([run]).get(str(run.root))


def running_attempts(runs: Iterable[RunPaths]) -> dict[str, AttemptPaths]:
    """The running attempt of each run that has one, by the run's folder. One question to Slurm for all of them."""
    on = going(attempt for run in runs for attempt in run.attempts())
    return {str(attempt.run.root): attempt for attempt in reversed(on)}


def write_attempt(composed: Composed, *, plan: Plan) -> AttemptPaths:
    """Make the next attempt's folder with all that describes the run; SubmissionError where it can't be written."""
    try:
        paths = plan.run.new_attempt()
        write_text(paths.resolved, text=dump_resolved(frozen(composed.config)))
        write_text(paths.overrides, text="".join(f"{o}\n" for o in composed.overrides))
        write_json(paths.plan, data=plan.to_json())
        write_json(paths.versions, data=installed_versions())
        write_json(paths.git, data=git_state())
    except OSError as error:
        raise unwritable(composed.config, error=error) from None
    return paths


def repeat_attempt(paths: AttemptPaths, *, config: RunConfig) -> AttemptPaths:
    """Make the next attempt of the same run, with this configuration. Raises SubmissionError as `write_attempt`."""
    try:
        attempt = paths.run.new_attempt()
        write_text(attempt.resolved, text=dump_resolved(config))
        write_text(attempt.overrides, text=paths.overrides.read_text())
        write_json(attempt.plan, data=read_json(paths.plan))
        write_json(attempt.versions, data=installed_versions())
        write_json(attempt.git, data=git_state())
    except OSError as error:
        raise unwritable(config, error=error) from None
    return attempt


def frozen(config: RunConfig) -> RunConfig:
    """The configuration with absolute paths: a node's current folder, or a container's, is another one."""
    model, job = config.model, config.job
    if model.hf_path is not None and Path(model.hf_path).is_dir():
        model = replace(model, hf_path=str(Path(model.hf_path).absolute()))
    if job.prompts is not None:
        job = replace(job, prompts=str(Path(job.prompts).absolute()))
    return replace(config, model=model, job=job, output_dir=str(Path(config.output_dir).absolute()))


def unwritable(config: RunConfig, *, error: OSError) -> SubmissionError:
    """What to raise where the output folder refuses a file."""
    return SubmissionError(
        f"error: output_dir is {config.output_dir}, the run's folder cannot be written there\n"
        f"  why:    {error}\n"
        f"hint: output_dir=/a/folder/with/space"
    )


def start_local(paths: AttemptPaths, *, plan: Plan) -> Job[None]:
    """Start one process per rank on this machine; returns at once."""
    executor = LocalExecutor(folder=paths.logs)
    executor.update_parameters(
        tasks_per_node=plan.processes_per_node,
        gpus_per_node=plan.num_gpus,
        timeout_min=plan.timeout_min,
        stderr_to_stdout=True,
    )
    payload: Callable[[str], None] = run_rank
    # The ranks inherit it: of a terminal that is closed the launcher tells them.
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        job = executor.submit(payload, str(paths.root.resolve()))
        write_submission(paths, cluster=ClusterKind.local, job=job.job_id)
    except OSError as error:
        raise SubmissionError(f"error: the ranks could not be started: {error}") from None
    finally:
        signal.signal(signal.SIGHUP, before)
    return job


def start_slurm(paths: AttemptPaths, *, config: RunConfig) -> Job[None]:
    """Queue the attempt with a copy of the code as it is now; returns at once. A refusal is the attempt's outcome."""
    try:
        code = copy_code(Outputs(Path(config.output_dir)))
        job = submit_slurm(paths, config=config, code=code)
        write_submission(paths, cluster=ClusterKind.slurm, job=job.job_id)
    except SubmissionError as error:
        write_outcome(paths, state="refused", exit_code=ExitCode.SUBMISSION, error=str(error))
        raise
    except OSError as error:
        raise unwritable(config, error=error) from None
    return job

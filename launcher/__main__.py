"""The command line: `python -m launcher [verb] [overrides]`. Owns the verbs' words and exit codes, nothing else."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence

from launcher.errors import ConfigError, ExitCode, LauncherError

USAGE = """usage: python -m launcher [verb] [overrides]

  (none) | submit     compose, validate, plan, start; a local run stays for the verdict, Slurm's is queued
  check               compose and validate only
  plan                also print ranks, GPU-hours, environment, the command or the sbatch script
  explain CODE|KEY    a rule; or a key: its value, who set it, which rules read it
  status [RUN...]     state, last step and heartbeat of all runs or some; --json
  logs [-f] [RUN]     what rank 0 printed, or rank=N; -f stays until the end
  cancel RUN...       end runs
  requeue RUN...      queue runs again that Slurm or an error ended; they go on from their last save
  report [RUN...]     the verdict of a run; several side by side; a sweep's table and page
  probe [NAME]        what the Slurm cluster here is, written as the profile cluster=NAME

submit, plan and check take -m: several values of a key, all combinations. Points that cannot work are pruned with
the reason, the rest is priced, and runs here in turn or as Slurm arrays. The same words again run what is missing.

RUN is `latest`, a Slurm job's id, a run's name or folder, or an attempt's folder. For status, cancel,
requeue and report it may be a sweep: its folder, or the last part of that.

overrides are Hydra's: group=option, group.key=value, +preset=name. Start here:

  python -m launcher +preset=zero_kl_cpu          no GPU needed: every log-probability equal, to the bit
  python -m launcher                              the same experiment with ordinary kernels: not equal
  python -m launcher plan +preset=zero_kl         what a Blackwell cluster would be asked for

exit codes: 0 fine, 2 configuration refused, 3 environment refused, 4 submission failed, 5 experiment failed,
6 interrupted by a signal, saved, to go on"""


def submit(arguments: Sequence[str]) -> ExitCode:
    """Compose, refuse or start; stay with a local run until its verdict."""
    from rich.console import Console

    from launcher.run import start_run
    from launcher.sweep.expand import is_sweep

    if is_sweep(arguments):
        from launcher.sweep.run import start_sweep

        return start_sweep(arguments, console=Console())
    return start_run(arguments, console=Console())


def check(arguments: Sequence[str]) -> ExitCode:
    """Print how many rules hold; warnings too. With -m: what becomes of every point."""
    from launcher.compose import compose
    from launcher.environment import check_environment
    from launcher.requirement import render
    from launcher.sweep.expand import is_sweep
    from launcher.validate import validate

    if is_sweep(arguments):
        return plan(arguments)
    config = compose(arguments).config
    validation = validate(config)
    validation.raise_if_invalid()
    check_environment(config)
    for warning in validation.warnings:
        print(render(warning), end="\n\n")
    print(f"configuration holds: {validation.num_checked} rules checked, {len(validation.warnings)} warning(s)")
    return ExitCode.OK


def plan(arguments: Sequence[str]) -> ExitCode:
    """Print the plan of a valid configuration, or the price of a sweep; writes nothing."""
    from launcher.compose import compose
    from launcher.plan import make_plan, render_plan
    from launcher.requirement import render
    from launcher.sweep.expand import is_sweep
    from launcher.validate import validate

    if is_sweep(arguments):
        from launcher.sweep.run import plan_sweep

        return plan_sweep(arguments)
    composed = compose(arguments)
    validation = validate(composed.config)
    validation.raise_if_invalid()
    made = make_plan(composed.config, validation=validation)
    for warning in validation.warnings:
        print(render(warning), end="\n\n")
    print(render_plan(made, overrides=composed.overrides))
    if made.sbatch:
        print(f"\n{made.sbatch}")
    return ExitCode.OK


def explain(arguments: Sequence[str]) -> ExitCode:
    """Print a rule's row, or all that is known of a key under the overrides that follow it."""
    from launcher.compose import compose
    from launcher.explain import explain_code, explain_key
    from launcher.rules import RULES

    if not arguments:
        raise ConfigError("error: explain needs a rule's code or a key\nhint: python -m launcher explain PL001")
    what, *overrides = arguments
    if re.fullmatch(r"[A-Za-z]{2,3}\d+", what) or what[:1].isupper():
        print(explain_code(what, rules=RULES))
    else:
        print(explain_key(what, composed=compose(overrides), rules=RULES))
    return ExitCode.OK


def status(arguments: Sequence[str]) -> ExitCode:
    """Print how runs are doing."""
    from launcher.attend import show_status

    return show_status(arguments)


def logs(arguments: Sequence[str]) -> ExitCode:
    """Print a rank's log."""
    from launcher.attend import show_logs

    return show_logs(arguments)


def cancel(arguments: Sequence[str]) -> ExitCode:
    """End runs."""
    from launcher.attend import cancel

    return cancel(arguments)


def requeue(arguments: Sequence[str]) -> ExitCode:
    """Queue runs again that did not finish."""
    from launcher.requeue import requeue

    return requeue(arguments)


def report(arguments: Sequence[str]) -> ExitCode:
    """Print one verdict, several side by side, or a sweep's table."""
    from rich.console import Console

    from launcher.run import show_reports

    return show_reports(arguments or ["latest"], console=Console())


def probe(arguments: Sequence[str]) -> ExitCode:
    """Write a profile of the cluster here."""
    from launcher.slurm.probe import probe

    return probe(arguments)


_BASE_PACKAGES = ("rich", "hydra", "omegaconf", "submitit", "packaging")

VERBS: dict[str, Callable[[Sequence[str]], ExitCode]] = {
    "submit": submit,
    "check": check,
    "plan": plan,
    "explain": explain,
    "status": status,
    "logs": logs,
    "cancel": cancel,
    "requeue": requeue,
    "report": report,
    "probe": probe,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb; messages for people go to stderr without a traceback, and their exit code comes back."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _run_verb(words)
    except LauncherError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        if error.name not in _BASE_PACKAGES:
            raise
        text = f"error: this Python has no {error.name}\nhint: source .venv/bin/activate (make demo makes it)"
        print(text, file=sys.stderr)
        return ExitCode.ENVIRONMENT
    except BrokenPipeError:  # `launcher plan | head`: the reader has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    except KeyboardInterrupt:
        print("interrupted; no rank was left running on this machine", file=sys.stderr)
        return ExitCode.EXPERIMENT


def _run_verb(words: Sequence[str]) -> ExitCode:
    if words[:1] == ["help"] or any(word in ("-h", "--help") for word in words):
        print(USAGE)
        return ExitCode.OK
    if words and words[0] in VERBS:
        return VERBS[words[0]](words[1:])
    if words and _looks_like_a_verb(words[0]):
        from launcher.suggest import nearest

        near = nearest(words[0], names=VERBS)
        raise ConfigError(f"error: no verb is called {words[0]}; there are {', '.join(near)}\nhint: {near[0]}")
    return submit(words)


def _looks_like_a_verb(word: str) -> bool:
    return word.isalpha()


if __name__ == "__main__":
    sys.exit(main())

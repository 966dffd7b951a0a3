"""What goes wrong for people, and the exit code each kind carries.

`ConfigError` and its siblings are messages for the person at the terminal: they are printed without a traceback.
A bug of ours is an `assert` or any other exception, and keeps its traceback.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every verb and of the worker."""

    OK = 0
    CONFIG = 2
    ENVIRONMENT = 3
    SUBMISSION = 4
    EXPERIMENT = 5
    INTERRUPTED = 6


class LauncherError(Exception):
    """Base of the messages meant for people; the text is complete, multi-line where needed."""

    exit_code = ExitCode.EXPERIMENT


class ConfigError(LauncherError):
    """The configuration was refused: the text names key, found, wanted, why and the override to type."""

    exit_code = ExitCode.CONFIG


class NodeError(LauncherError):
    """This machine was refused: a package, a version, a GPU or an environment variable is not as the platform needs."""

    exit_code = ExitCode.ENVIRONMENT


class SubmissionError(LauncherError):
    """The run could not be started: Slurm or the run folder refused."""

    exit_code = ExitCode.SUBMISSION


class Interrupted(LauncherError):  # noqa: N818  no error: the run was asked to end, and did
    """A signal asked the run to end, and all ranks ended it after the same step; the save of it is written."""

    exit_code = ExitCode.INTERRUPTED


class ExperimentError(LauncherError):
    """The experiment started and failed, or its verdict is not the one that was required."""

    exit_code = ExitCode.EXPERIMENT


def blame(host: str) -> str:
    """The hint under an error that is the fault of the node it was seen on: whoever retries may leave that node out."""
    return f"cluster.exclude={host}"

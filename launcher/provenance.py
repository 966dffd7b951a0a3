"""Where a run came from: versions of the packages that matter, and the commit of the working tree.

Both are read once a process: all points of a sweep are submitted from one state.
"""

import importlib.metadata
import platform
import subprocess
from functools import cache
from pathlib import Path

_PACKAGES = (
    "hydra-core",
    "omegaconf",
    "submitit",
    "torch",
    "triton",
    "megatron-core",
    "megatron-bridge",
    "transformers",
    "transformer-engine",
    "flash-attn-4",
    "nvidia-cutlass-dsl",
)


@cache
def installed_versions() -> dict[str, str]:
    """Name to version; "absent" where a package is not installed."""
    found = {"python": platform.python_version(), "launcher": _version("zero-kl-launcher")}
    return found | {name: _version(name) for name in _PACKAGES}


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


@cache
def git_state() -> dict[str, str]:
    """Commit and whether the tree differs from it; the reason where there is no repository."""
    root = Path(__file__).resolve().parent.parent
    try:
        commit = _git("rev-parse", "HEAD", root=root)
        changes = _git("status", "--porcelain", root=root)
    except (OSError, subprocess.CalledProcessError) as error:
        return {"commit": "unknown", "tree": "unknown", "reason": type(error).__name__}
    return {"commit": commit, "tree": "changed" if changes else "clean"}


def _git(*arguments: str, root: Path) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()

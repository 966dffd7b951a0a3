"""A copy of the launcher's packages for the ranks of a queued run, so that later edits do not change it.

A copied tree and not commit and patch: it needs no git on the nodes and no repository (a wheel has none), holds
untracked files too, and is a folder that the ranks import as it is. Its name is the hash of its content, so all runs
of one state share one. git.json still says which commit it was.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from functools import cache
from pathlib import Path

from launcher.paths import Outputs

_ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = ("launcher", "megatron_setup", "zero_kl")
_CACHES = "__pycache__"


@cache
def code_digest() -> str:
    """Eight hexadecimal digits of the names and contents of every file of the packages."""
    state = hashlib.sha256()
    for package in _PACKAGES:
        for path in sorted((_ROOT / package).rglob("*")):
            if path.is_file() and _CACHES not in path.parts:
                state.update(f"{path.relative_to(_ROOT)}\0".encode())
                state.update(path.read_bytes())
    return state.hexdigest()[:8]


def copy_code(outputs: Outputs) -> Path:
    """The folder of the copy, made where it is not there yet; two launchers at once make one. Raises OSError."""
    folder = outputs.code(code_digest())
    if folder.is_dir():
        return folder
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        for package in _PACKAGES:
            shutil.copytree(_ROOT / package, unfinished / package, ignore=shutil.ignore_patterns(_CACHES))
        unfinished.rename(folder)
    except OSError:
        shutil.rmtree(unfinished, ignore_errors=True)
        if not folder.is_dir():  # otherwise another launcher was quicker
            raise
    return folder

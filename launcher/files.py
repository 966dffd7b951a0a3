"""Writing so that a reader never sees half a file, and saying so where a disk is full."""

import json
import os
import shutil
from pathlib import Path
from typing import Any


def write_text(path: Path, *, text: str) -> None:
    """Write through a temporary sibling and rename; a killed writer leaves the old file or none."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, *, data: Any) -> None:
    """`write_text` of indented JSON; a value JSON does not know is our bug."""
    write_text(path, text=json.dumps(data, indent=2) + "\n")


def disk_note(folder: Path) -> str:
    """What to add to an error where the folder's disk has less than 1 MB left; empty otherwise."""
    free = shutil.disk_usage(folder).free
    if free >= 2**20:
        return ""
    return f"\n  why:    the disk of {folder} is full ({free} bytes free)\nhint: output_dir=/a/folder/with/space"


def read_json(path: Path) -> Any:
    """The data of a JSON file; None where the file does not exist."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None

"""Short hashes of what lies on disk: the checkpoint a run starts from, a file of prompts."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def folder_fingerprint(folder: Path) -> str:
    """Of every file's name, size and time, and of config.json's content; 12 hexadecimal digits."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    state = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    content = b"".join(path.read_bytes() for path in files if path.name == "config.json")
    return hashlib.sha256(json.dumps(state).encode() + content).hexdigest()[:12]


def file_fingerprint(path: Path) -> str:
    """Of the content; 12 hexadecimal digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def mapping_fingerprint(data: Mapping[str, Any]) -> str:
    """Of the canonical JSON: the same for every order of the keys; 8 hexadecimal digits."""
    canonical = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:8]

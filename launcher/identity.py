"""The name of a question: `<name>-<hash8>`, the same for the same question.

The hash covers what differs from the defaults of the schema, so a new field with a default renames no old run, and the
content of the files that the configuration names. Left out is what cannot change an answer: where it runs (but for
ranks that share a GPU), its name, whether it is forced; versions and commit too: other code's answer is not offered.
"""

import hashlib
import json
import re
from pathlib import Path

from launcher.fingerprint import file_fingerprint, folder_fingerprint
from launcher.resolved import delta_from_defaults
from launcher.schema import RunConfig
from megatron_setup.model_source import pretrained_iteration

_IGNORED = ("force", "output_dir", "job.name", "cluster.")
_COUNTED = ("cluster.num_processes", "cluster.ranks_per_gpu")


def digest(config: RunConfig) -> str:
    """Eight hexadecimal digits of the delta from the defaults and of the named files' content."""
    delta = {
        key: value
        for key, value in delta_from_defaults(config).items()
        if key in _COUNTED or not key.startswith(_IGNORED)
    }
    question = [delta, _contents(config)]
    return hashlib.sha256(json.dumps(question, sort_keys=True, default=str).encode()).hexdigest()[:8]


def _contents(config: RunConfig) -> list[str]:
    """Fingerprints of the checkpoints' folders and of the file of prompts, where they are named and lie here."""
    found: list[str] = []
    if config.model.hf_path is not None and Path(config.model.hf_path).is_dir():
        found.append(folder_fingerprint(Path(config.model.hf_path)))
    pretrained = pretrained_iteration(config.model)
    if pretrained is not None:
        found.append(folder_fingerprint(pretrained.path))
    if config.job.prompts is not None and Path(config.job.prompts).is_file():
        found.append(file_fingerprint(Path(config.job.prompts)))
    return found


def run_name(config: RunConfig) -> str:
    """`job.name`, or job and model; only letters, digits, dot, dash and underscore."""
    name = config.job.name or f"{config.job.kind.value}-{config.model.name}"
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name)

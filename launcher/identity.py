"""The name of a question: `<name>-<hash8>`, the same for the same question.

The hash covers what differs from the defaults of the schema, so a new field with a default renames no old run. Left out
is what cannot change an answer: where it runs, under which name, and whether it is forced.
"""

import hashlib
import json
import re

from launcher.resolved import delta_from_defaults
from launcher.schema import RunConfig

_IGNORED = ("force", "output_dir", "job.name", "cluster.")
_COUNTED = ("cluster.num_processes",)


def digest(config: RunConfig) -> str:
    """Eight hexadecimal digits of the delta from the defaults."""
    delta = {
        key: value
        for key, value in delta_from_defaults(config).items()
        if key in _COUNTED or not key.startswith(_IGNORED)
    }
    return hashlib.sha256(json.dumps(delta, sort_keys=True, default=str).encode()).hexdigest()[:8]


def run_name(config: RunConfig) -> str:
    """`job.name`, or job and model; only letters, digits, dot, dash and underscore."""
    name = config.job.name or f"{config.job.kind.value}-{config.model.name}"
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name)

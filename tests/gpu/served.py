"""A model in a process of its own, set up by the launcher's worker, for the measuring scripts beside this file.

`serve(words, job=...)` takes the place of the job `mismatch`: environment, gates, kernels and model are the worker's.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from launcher.compose import compose
from launcher.environment import apply_environment
from launcher.paths import AttemptPaths
from launcher.placement import Placement
from launcher.records import ProgressWriter
from launcher.validate import validate

ZERO = ["+preset=zero_kl_hopper", "cluster=local"]
ORDINARY = ["platform=hopper", "generation=gpu"]
MEGATRON = [*ZERO, "zero_kl=megatron", "zero_kl.required=true"]
GRAPHS = ["generation=graphs", "performance.use_te_rng_tracker=true"]
PINNED = ["platform=hopper", "zero_kl.batch_invariant_mode=true"]
PINNED += ["performance.attention_backend=flash", "performance.flash_attention_version=4"]
"""Ordinary kernels with FlashAttention's split count fixed, without which graphs of decode fail on sm_90."""


def serve(words: Sequence[str], *, job: Callable[[Any], None]) -> None:
    """Set the model up and call `job(setup)`; it may use everything a job uses."""
    config = compose(words).config
    validate(config).raise_if_invalid()
    apply_environment(config)

    from launcher import jobs  # its jobs import torch: only now is the environment set

    def take_over(setup: Any, *, paths: AttemptPaths) -> None:
        del paths
        job(setup)

    jobs._JOBS = {config.job.kind: take_over}  # pyright: ignore[reportPrivateUsage]
    with tempfile.TemporaryDirectory() as folder:
        paths = AttemptPaths(Path(folder) / "attempt_1")
        paths.rank(0).parent.mkdir(parents=True)
        jobs.run_job(
            config,
            paths=paths,
            placement=Placement(rank=0, local_rank=0, world_size=1),
            progress=ProgressWriter(None),
        )

"""What the set-up took on all ranks, written down by rank 0."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from launcher.files import write_json
from megatron_setup.apply import Setup


def write_stages(setup: Setup, *, path: Path) -> None:
    """Write each step's time and memory, of the rank that took most, and the parameters a rank holds. Called by all."""
    mine = {name: asdict(stage) for name, stage in setup.stages.items()}
    parameters = sum(p.numel() for chunk in setup.model for p in chunk.parameters())
    shares: list[Any] = [None] * setup.world_size
    torch.distributed.all_gather_object(shares, (mine, parameters))
    if setup.rank == 0:
        stages = {
            name: {key: max(share[0][name][key] for share in shares) for key in figures}
            for name, figures in mine.items()
        }
        data = {
            "stages": stages,
            "parameters_per_rank": max(share[1] for share in shares),
            "padded_vocab_size": setup.finished.padded_vocab_size,
        }
        write_json(path, data=data)

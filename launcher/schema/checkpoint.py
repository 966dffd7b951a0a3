"""Saving and loading training state."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Off unless `save` is true."""

    save: bool = False
    """Save weights, optimizer and RNG state into the attempt's folder after the last step."""

"""Saving and loading training state. Megatron-Bridge's spelling."""

from dataclasses import dataclass
from enum import Enum


class AsyncStrategy(Enum):
    """`async_strategy` of Bridge: nvidia-resiliency-ext's writer or megatron-core's."""

    nvrx = "nvrx"
    mcore = "mcore"


class ParallelGroup(Enum):
    """Ranks that share the work of a fully parallel save or load."""

    dp = "dp"
    ep_dp = "ep_dp"


class ExchangeAlgorithm(Enum):
    """`ckpt_fully_parallel_load_exchange_algo`: how ranks hand each other what they read."""

    broadcast = "broadcast"
    gather_rounds = "gather_rounds"
    gather_object = "gather_object"


class Strictness(Enum):
    """`dist_ckpt_strictness`: what a key that only one side has does to a load."""

    assume_ok_unexpected = "assume_ok_unexpected"
    log_unexpected = "log_unexpected"
    log_all = "log_all"
    raise_unexpected = "raise_unexpected"
    raise_all = "raise_all"
    return_unexpected = "return_unexpected"
    return_all = "return_all"
    ignore_all = "ignore_all"


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Off unless `save` is true or `load` is set. null leaves Bridge's default."""

    save: bool = False
    """Save weights, optimizer and RNG state into the attempt's folder after the last step."""

    save_interval: int | None = None
    """Optimizer steps between further saves. null: only the one after the last step."""

    most_recent_k: int | None = None
    """Newest saves that are kept. -1: all."""

    save_optim: bool | None = None
    """Save optimizer and scheduler state."""

    save_rng: bool | None = None
    """Save random states."""

    load: str | None = None
    """A folder of saves to resume from, newest first. null: start from the model's weights."""

    load_optim: bool | None = None
    """Resume optimizer and scheduler state."""

    load_rng: bool | None = None
    """Resume random states."""

    dist_ckpt_strictness: Strictness | None = None
    """What a missing or unexpected key does to a load."""

    async_save: bool = False
    """Write in the background while training goes on."""

    async_strategy: AsyncStrategy | None = None
    """Whose background writer."""

    use_persistent_ckpt_worker: bool | None = None
    """Keep the background writer alive between saves."""

    ckpt_assume_constant_structure: bool = False
    """Reuse the first save's plan for all later ones."""

    fully_parallel_save: bool | None = None
    """Share the writing over the data-parallel ranks."""

    fully_parallel_load: bool | None = None
    """Share the reading over the data-parallel ranks."""

    ckpt_fully_parallel_save_process_group: ParallelGroup | None = None
    """Who shares the writing."""

    ckpt_fully_parallel_load_process_group: ParallelGroup | None = None
    """Who shares the reading."""

    ckpt_fully_parallel_load_exchange_algo: ExchangeAlgorithm | None = None
    """How what was read is handed on."""

    storage_writers_per_rank: int | None = None
    """Files that a rank writes at the same time."""

    also_save_hf_checkpoint: bool = False
    """Export the weights in Hugging Face format beside each save."""

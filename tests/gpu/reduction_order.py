"""In which order does NCCL add? Rows of an all-reduce alone against the same rows in a batch, by NCCL's settings.

    python tests/gpu/reduction_order.py RANKS [RANKS ...]

All ranks share the first GPU (NCCL 2.30 or later). Prints one line for each number of ranks and setting: of so many
first rows, alone, how many have other bits than among 512. The CPU's half is tests/zero_kl/kernels/test_reduction.py.
"""

import os
import subprocess
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist

HIDDEN, BATCH = 2048, 512
SIZES = (1, 2, 3, 7, 24, 64, 128, 511)
SETTINGS: dict[str, dict[str, str]] = {
    "NCCL's own choice": {},
    "Ring, one channel": {"NCCL_ALGO": "allreduce:ring", "NCCL_MIN_NCHANNELS": "1", "NCCL_MAX_NCHANNELS": "1"},
    "Ring, one channel, Simple": {
        "NCCL_ALGO": "allreduce:ring",
        "NCCL_PROTO": "Simple",
        "NCCL_MIN_NCHANNELS": "1",
        "NCCL_MAX_NCHANNELS": "1",
    },
    "Tree": {"NCCL_ALGO": "allreduce:tree"},
    "Tree, one channel": {"NCCL_ALGO": "allreduce:tree", "NCCL_MIN_NCHANNELS": "1", "NCCL_MAX_NCHANNELS": "1"},
}
Reduce = Callable[[torch.Tensor], torch.Tensor]


def all_reduce(part: torch.Tensor) -> torch.Tensor:
    """What tensor parallelism does."""
    total = part.clone()
    dist.all_reduce(total)
    return total


def reduce_scatter(part: torch.Tensor) -> torch.Tensor:
    """What sequence parallelism does; gathered again, padded to the ranks."""
    world = dist.get_world_size()
    padded = torch.nn.functional.pad(part, (0, 0, 0, -len(part) % world))
    mine = padded.new_empty(len(padded) // world, HIDDEN)
    dist.reduce_scatter_tensor(mine, padded)
    total = torch.empty_like(padded)
    dist.all_gather_into_tensor(total, mine)
    return total[: len(part)]


def gathered(part: torch.Tensor) -> torch.Tensor:
    """All parts, added in fp32 and rounded once."""
    parts = part.new_empty(dist.get_world_size(), *part.shape)
    dist.all_gather_into_tensor(parts, part)
    return parts.sum(0, dtype=torch.float32).to(part.dtype)


def measure(setting: str) -> None:
    """This rank's half; rank 0 prints."""
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
    generator = torch.Generator("cuda").manual_seed(rank)
    part = torch.randn(BATCH, HIDDEN, device="cuda", generator=generator).bfloat16()
    for reduce in (all_reduce, reduce_scatter, gathered):
        together = reduce(part)
        changed = [int((reduce(part[:size].contiguous()) != together[:size]).any(1).sum()) for size in SIZES]
        if rank == 0:
            figures = " ".join(f"{n:4d}" for n in changed)
            print(f"{dist.get_world_size()} ranks {setting:26s} {reduce.__name__:14s} {figures}", flush=True)
    dist.destroy_process_group()


def main() -> None:
    """Start the ranks of each number and setting."""
    print(f"{'rows alone':49s} {' '.join(f'{size:4d}' for size in SIZES)}", flush=True)
    for ranks in sys.argv[1:]:
        for setting, variables in SETTINGS.items():
            command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", ranks, __file__]
            environment = {**os.environ, "NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_NVLS_ENABLE": "0", **variables}
            done = subprocess.run(
                command, env={**environment, "SETTING": setting}, capture_output=True, text=True, timeout=120
            )
            print(done.stdout, end="" if done.returncode == 0 else done.stderr[-800:], flush=True)


if __name__ == "__main__":
    measure(os.environ["SETTING"]) if "RANK" in os.environ else main()

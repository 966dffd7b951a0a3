"""Parallel layouts on NCCL ranks, through the launcher's own worker: does training agree with generation to the bit?

    python tests/gpu/two_gpu.py OUT SHARED GROUP [GROUP ...]

SHARED ranks share a GPU: 1 where each rank has its own, 2 or 4 to rehearse the layouts on one (NCCL 2.30 or later; the
speeds then say nothing). Each group is names joined by commas, which run side by side. Writes a report per case to OUT
and the table to OUT/layouts.md. NVLink multicast is left off: a program that uses it can stop a shared host's GPUs.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.gpu.cases import DENSE, MOE, median_rate, run

NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
SAMPLE = [
    "job.max_prompt_tokens=300",
    "job.num_steps=3",
    "generation.max_new_tokens=32",
    "generation.buffer_size_gb=3",
    "model.seq_length=1024",
    "performance.micro_batch_size=16",
]
"""32 tokens, before and after each of three steps."""

SHALLOW = ["model.hf_config.num_hidden_layers=4"]
"""Every collective of ranks that share a GPU waits for a time slice: 4.5 ms with two ranks, 27 with four."""

ZERO = ["+preset=zero_kl_hopper"]
MODES = {
    "te_native": ZERO,
    "megatron": [*ZERO, "zero_kl=megatron"],
    # the same kernels, with NCCL's own order of addition
    "ring": [*ZERO, "zero_kl.required=false", "zero_kl.batch_invariant_collective=false"],
    "ordinary": ["platform=hopper", "generation=gpu"],
}
TO_ONE = ["generation.tensor_model_parallel_size=1", "zero_kl.required=false"]
LAYOUTS = {
    "dp2": [*DENSE, "parallelism=dp2"],
    "dp2_overlap": [
        *DENSE,
        "parallelism=dp2",
        "optimizer.overlap_param_gather=true",
        "optimizer.ddp.overlap_grad_reduce=true",
    ],
    "ep2": [*MOE, "parallelism=ep2", "job.num_prompts=80"],
    "tp2": [*DENSE, "parallelism=tp2"],
    "tp2_sp": [*DENSE, "parallelism=tp2_sp"],
    "tp2_to_tp1": [*DENSE, "parallelism=tp2", *TO_ONE],
    "tp2_ep2": [*MOE, "parallelism=tp2_sp", "parallelism.expert_model_parallel_size=2", "job.num_prompts=160"],
    "pp2": [*DENSE, "parallelism=pp2"],
    "dp4": [*DENSE, "parallelism.data_parallel_size=4"],
    "ep4": [*MOE, "parallelism.expert_model_parallel_size=4", "job.num_prompts=40"],
    "tp4": [*DENSE, "parallelism.tensor_model_parallel_size=4"],
    "tp4_sp": [*DENSE, "parallelism.tensor_model_parallel_size=4", "parallelism.sequence_parallel=true"],
    "pp4": [*DENSE, "parallelism.pipeline_model_parallel_size=4"],
    "tp2_pp2": [*DENSE, "parallelism=tp2", "parallelism.pipeline_model_parallel_size=2"],
    "ep8": [*MOE, "parallelism.expert_model_parallel_size=8", "job.num_prompts=20"],
}
"""The distributed optimizer is the schema's own; ep2 sends tokens by all-to-all, as every run with experts here."""


def _prompts(layout: list[str]) -> list[str]:
    """20,480 tokens a case; ranks that share experts sample the same prompts each, and need fewer."""
    return [] if any(word.startswith("job.num_prompts=") for word in layout) else ["job.num_prompts=160"]


CASES = {
    f"{mode}_{name}{depth}": ["cluster=local", *words, *layout, *_prompts(layout), *SAMPLE, *depth_words]
    for depth, depth_words in (("", SHALLOW), ("_deep", []))
    for mode, words in MODES.items()
    for name, layout in LAYOUTS.items()
}


def main() -> int:
    """Run the cases and write the table; exit 1 where a case left no report."""
    out, shared, *groups = sys.argv[1:]
    os.environ.update(NO_MULTICAST)
    cases = {name: [*words, f"cluster.ranks_per_gpu={shared}"] for name, words in CASES.items()}
    failed = run(cases, groups=groups, folder=Path(out))
    names = [name for group in groups for name in group.split(",") if name not in failed]
    table = "\n".join([_HEAD, *(_row(name, report=_read(Path(out), name=name)) for name in names), ""])
    Path(out, "layouts.md").write_text(table)
    print(table, *(f"{name}: no report" for name in failed), sep="\n")
    return int(bool(failed))


_HEAD = (
    "| case | n | exact before | after step 1 | 2 | 3 | max abs Δ | k3 | generation, training, update tok/s |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


def _read(folder: Path, *, name: str) -> dict[str, Any]:
    return json.loads((folder / f"{name}.json").read_text())


def _row(name: str, *, report: dict[str, Any]) -> str:
    exact = [f"{m['n_exact']:,} of {m['n']:,}" for m in report["measurements"]]
    total, sides = report["total"], ("generation", "training", "update")
    speeds = ", ".join(f"{median_rate(report['throughput'], side):,.0f}" for side in sides)
    figures = f"{float(total['max_abs_diff']):.1e} | {float(total['k3']):.1e}"
    return f"| {name} | {total['n']:,} | {' | '.join(exact)} | {figures} | {speeds} |"


if __name__ == "__main__":
    sys.exit(main())

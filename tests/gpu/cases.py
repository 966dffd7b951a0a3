"""Runs named cases through the launcher on a GPU host, several at once where asked, and prints one table.

    python tests/gpu/cases.py OUT NAME[,NAME...] [NAME...]

Names joined by commas run side by side on the same GPU (for exactness, not for speed); words run one after another.
Each case's report.json and the log of its rank 0 are copied to OUT.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

LIMIT_S = 300.0
"""How long the cases of a word may take together."""

ZERO = ["+preset=zero_kl_hopper", "cluster=local"]
ORDINARY = ["platform=hopper", "generation=gpu"]
MEGATRON = [*ZERO, "zero_kl=megatron", "zero_kl.required=true"]
DENSE = ["model=qwen3_1b"]
MOE = ["model=qwen3_moe_1b"]
GRAPHS = ["generation=graphs", "performance.use_te_rng_tracker=true"]
BLOCK = [*GRAPHS, "generation.inference_cuda_graph_scope=block"]
PINNED = ["platform=hopper", "zero_kl.batch_invariant_mode=true"]
PINNED += ["performance.attention_backend=flash", "performance.flash_attention_version=4"]
"""Ordinary kernels with FlashAttention's split count fixed, without which graphs of decode fail on sm_90."""
SMALL = ["model.hf_config.num_hidden_layers=2", "job.num_prompts=16", "job.num_steps=1", "generation.max_new_tokens=32"]
SMALL += ["generation.buffer_size_gb=4"]

LONG = [
    "job.min_prompt_tokens=1",
    "job.max_prompt_tokens=1500",
    "generation.max_new_tokens=512",
    "model.seq_length=2048",
    "job.num_prompts=24",
    "job.num_steps=5",
    "generation.buffer_size_gb=8",
]
SHAPES = {
    # head dim 128, GQA, untied
    "gqa128": DENSE,
    # head dim 64, GQA, tied
    "gqa64": [*DENSE, "model.hf_config.head_dim=64", "model.hf_config.tie_word_embeddings=true"],
    # head dim 128, MHA, tied
    "mha128": [*DENSE, "model.hf_config.num_key_value_heads=16", "model.hf_config.tie_word_embeddings=true"],
    # 16 experts, top-4
    "moe": MOE,
    # 64 experts, top-6, no normalisation of the chosen probabilities
    "moe64": [
        *MOE,
        "model.hf_config.hidden_size=1024",
        "model.hf_config.num_experts=64",
        "model.hf_config.num_experts_per_tok=6",
        "model.hf_config.moe_intermediate_size=512",
        "model.hf_config.norm_topk_prob=false",
    ],
}
COST = [
    "job.num_prompts=64",
    "job.max_prompt_tokens=64",
    "generation.max_new_tokens=192",
    "model.seq_length=256",
    "performance.micro_batch_size=32",
    "job.num_steps=4",
    "generation.buffer_size_gb=8",
]


def _padded(mode: str, name: str) -> list[str]:
    """With ordinary kernels only upstream's padding to capacity lets a graph hold experts."""
    has_experts = name in ("moe", "moe64")
    return ["moe.moe_pad_experts_for_cuda_graph_inference=true"] if mode == "pinned_" and has_experts else []


CASES = {
    "smoke": [*ZERO, *DENSE, *SMALL],
    "smoke_ordinary": [*ORDINARY, *DENSE, *SMALL],
    "smoke_megatron": [*MEGATRON, *DENSE, *SMALL],
    "smoke_moe": [*ZERO, *MOE, *SMALL],
    "smoke_moe64": [*ZERO, *SHAPES["moe64"], *SMALL],
    "smoke_megatron_moe": [*MEGATRON, *MOE, *SMALL],
    **{
        f"smoke_{graphs}_{mode}{name}": [*words, *captured, *SHAPES[name], *SMALL, *_padded(mode, name)]
        for name in ("gqa128", "moe")
        for mode, words in (("", ZERO), ("megatron_", MEGATRON), ("pinned_", PINNED))
        for graphs, captured in (("graphs", GRAPHS), ("block", BLOCK))
    },
    **{f"te_native_{name}": [*ZERO, *LONG, *shape] for name, shape in SHAPES.items()},
    **{f"megatron_{name}": [*MEGATRON, *LONG, *shape] for name, shape in SHAPES.items()},
    **{f"ordinary_{name}": [*ORDINARY, *LONG, *shape] for name, shape in SHAPES.items()},
    **{f"graphs_{name}": [*ZERO, *GRAPHS, *LONG, *shape] for name, shape in SHAPES.items()},
    **{f"megatron_graphs_{name}": [*MEGATRON, *GRAPHS, *LONG, *shape] for name, shape in SHAPES.items()},
    **{f"block_{name}": [*ZERO, *BLOCK, *LONG, *shape] for name, shape in SHAPES.items()},
    **{
        f"pinned_graphs_{name}": [*PINNED, *GRAPHS, *LONG, *shape, *_padded("pinned_", name)]
        for name, shape in SHAPES.items()
    },
    **{
        f"cost_{mode}_{name}": [*words, *COST, *SHAPES[name]]
        for name in ("gqa128", "moe")
        for mode, words in (("ordinary", ORDINARY), ("te_native", ZERO), ("megatron", MEGATRON))
    },
}


RUNS = Path("/tmp/runs")


def run(cases: dict[str, list[str]], *, groups: list[str], folder: Path) -> list[str]:
    """Run groups of names one after another; what a case leaves is copied to `folder`. Names those without a report."""
    failed: list[str] = []
    for group in groups:
        started = [(name, _start(name, words=cases[name], folder=folder)) for name in group.split(",")]
        deadline = time.monotonic() + LIMIT_S
        for name, process in started:
            _end(process, deadline=deadline)
            failed += [] if _keep(name, folder=folder, code=process.returncode) else [name]
    return failed


def main() -> int:
    """Run the cases and print the table; exit 1 where a case left no report."""
    out, *groups = sys.argv[1:]
    failed = run(CASES, groups=groups, folder=Path(out))
    _print_table(Path(out), names=[n for g in groups for n in g.split(",")])
    return int(bool(failed))


def _start(name: str, *, words: list[str], folder: Path) -> subprocess.Popen[bytes]:
    """All runs share the output folder, so that a model is made and converted once."""
    words = [*words, f"output_dir={RUNS}", f"job.name={name}"]
    log = (folder / f"{name}.txt").open("wb")
    print(f"{time.strftime('%H:%M:%S')} {name}: python -m launcher {' '.join(words)}", flush=True)
    command = [sys.executable, "-m", "launcher", *words]
    environment = {**os.environ, "PYTHONFAULTHANDLER": "1"}
    return subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)


def _end(process: subprocess.Popen[bytes], *, deadline: float) -> None:
    """Wait for the case; where it takes too long end it with its ranks, whose logs then have all threads' stacks."""
    try:
        process.wait(max(1.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGABRT)
        time.sleep(2.0)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _keep(name: str, *, folder: Path, code: int) -> bool:
    """Copy what the case left; print the end of its output where it left no report."""
    attempts = [path for run in RUNS.glob(f"{name}-*") for path in sorted(run.glob("attempt_*"))]
    reports = [report for path in attempts if (report := path / "report.json").exists()]
    logs = [log for path in attempts for log in sorted((path / "logs").glob("*_0_log.out"))]
    if logs:
        shutil.copy(logs[-1], folder / f"{name}.log")
    if reports:
        shutil.copy(reports[-1], folder / f"{name}.json")
    print(f"{time.strftime('%H:%M:%S')} {name}: exit {code}", flush=True)
    if not reports:
        print((folder / f"{name}.txt").read_text(errors="replace")[-2500:], flush=True)
    return bool(reports)


def _print_table(folder: Path, *, names: list[str]) -> None:
    sides = ("generation", "training", "update")
    print(
        f"{'case':24s} {'verdict':9s} {'n':>8s} {'n_exact':>8s} {'max|d|':>9s} " + " ".join(f"{s:>10s}" for s in sides)
    )
    for name in names:
        path = folder / f"{name}.json"
        if not path.exists():
            print(f"{name:24s} no report")
            continue
        report = json.loads(path.read_text())
        total = report["total"]
        rates = " ".join(f"{median_rate(report['throughput'], side):10,.0f}" for side in sides)
        counts = f"{total['n']:8d} {total['n_exact']:8d} {float(total['max_abs_diff']):9.2e}"
        print(f"{name:24s} {report['verdict']:9s} {counts} {rates}")


def median_rate(throughput: list[dict[str, float]], side: str) -> float:
    """Tokens per second of the middle step, the first left out: it compiles kernels."""
    rates = sorted(t[f"{side}_tokens"] / t[f"{side}_s"] for t in throughput[1:] if t[f"{side}_s"])
    return rates[len(rates) // 2] if rates else float("nan")


if __name__ == "__main__":
    sys.exit(main())

"""Training and generation of ordinary kernels, `te_native` and `megatron`, side by side on one GPU; prints one table.

    python tests/gpu/cost.py OUT [MODEL,...]
    python tests/gpu/cost.py --convert          only make the models' checkpoints, beside something else

Each mode is a process, since cuBLAS reads its environment once. All are alive at once and take turns: only one runs at
a time, in another order each round. Every figure is a median over the rounds. Writes OUT/cost.json.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.gpu.served import GRAPHS, MEGATRON, ORDINARY, PINNED, ZERO, serve
from tests.gpu.turns import PREFIX, Child

MODELS = {
    "dense": ["model=qwen3_1b"],
    "moe": ["model=qwen3_moe_1b", "model.hf_config.num_hidden_layers=16"],
}
"""0.94 B parameters; 2.55 B, of which 0.89 B are active."""

MODES = {
    "ordinary": ORDINARY,
    "te_native": [*ZERO, *GRAPHS],
    "megatron": MEGATRON,
    "pinned": [*PINNED, *GRAPHS],
}
SIZES = [
    "model.seq_length=2048",
    "performance.micro_batch_size=4",
    "job.num_prompts=128",
    "job.max_prompt_tokens=64",
    "generation.max_new_tokens=64",
    "generation.buffer_size_gb=3",
    "optimizer=adam_cpu_offload",  # four models fit; the timed turns take no optimizer step
    "output_dir=/tmp/runs/cost",
]
ROUNDS = {"train": 8, "generate": 6, "graphs": 4, "kernels": 0}
"""Timed turns, after one that compiles and is dropped."""

TAKES_PART = {
    "train": ("ordinary", "te_native", "megatron"),
    "generate": ("ordinary", "te_native", "megatron"),
    "graphs": ("pinned", "te_native"),
    "kernels": ("ordinary", "te_native"),
}
STEPS = 4
START_LIMIT_S = 180.0


def words_of(model: str, *, mode: str) -> list[str]:
    """The command line of a child. An ordinary MoE can be captured only with upstream's padding."""
    padded = ["moe.moe_pad_experts_for_cuda_graph_inference=true"] if (model, mode) == ("moe", "pinned") else []
    graphs = ["generation.num_cuda_graphs=2"] if mode in TAKES_PART["graphs"] else []
    return [*MODES[mode], *MODELS[model], *SIZES, *graphs, *padded]


def start(model: str, *, mode: str, out: Path) -> Child:
    """A child of the mode; its stderr goes to OUT."""
    with (out / f"cost_{model}_{mode}.log").open("w") as log:
        command = [sys.executable, "-u", __file__, "--child", *words_of(model, mode=mode)]
        return Child(
            mode, subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        )


def measure(model: str, *, out: Path) -> list[Child]:
    """All modes of one model; whoever is first makes the model and its checkpoint, the others find them."""
    children = [start(model, mode=mode, out=out) for mode in MODES]
    deadline = time.monotonic() + START_LIMIT_S
    for child in children:
        child.answer(limit_s=max(1.0, deadline - time.monotonic()))
    for phase, num_rounds in ROUNDS.items():
        for turn in range(num_rounds + 1):
            part = [c for c in children if c.mode in TAKES_PART[phase]]
            for child in part if turn % 2 else reversed(part):
                child.turn(phase)
    for child in children:
        child.end()
    return children


def convert() -> int:
    """The checkpoints of all models, at once."""
    commands = [[sys.executable, "-m", "launcher", *words_of(m, mode="te_native"), "job=convert"] for m in MODELS]
    processes = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for command in commands]
    return max(process.wait() for process in processes)


def child_main(words: list[str]) -> None:
    """Set up, say so, then run what each line of stdin asks for."""
    serve(words, job=_answer_turns)


def _answer_turns(setup: Any) -> None:
    phases: dict[str, Callable[[Any], dict[str, float]]] = {
        "train": _train,
        "kernels": _kernels,
        "generate": _eager,
        "graphs": _graphs,
    }
    import torch

    print(PREFIX + json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        result = phases[line.strip()](setup)
        torch.cuda.empty_cache()  # the memory of the others' turns
        print(PREFIX + json.dumps(result), flush=True)


class _NoStep:
    """An optimizer that leaves the weights: the figure is of forward and backward."""

    def zero_grad(self) -> None: ...
    def step(self) -> None: ...


@cache
def _sequences() -> list[list[int]]:
    generator = random.Random(0)
    return [[generator.randrange(32000) for _ in range(2049)] for _ in range(4)]


def _forward_and_backward(setup: Any) -> None:
    """Over 4 x 2,048 tokens, to the end of its kernels."""
    import torch

    from zero_kl.score import policy_gradient_step

    policy_gradient_step(
        setup.model,
        optimizer=_NoStep(),  # pyright: ignore[reportArgumentType]
        sequences=_sequences(),
        prompt_lengths=[1] * 4,
        advantages=[1.0] * 4,
        micro_batch_size=4,
        row_multiple=64,
    )
    torch.cuda.synchronize()


def _train(setup: Any) -> dict[str, float]:
    """Milliseconds of forward and backward; the median of some steps."""
    times: list[float] = []
    for _ in range(STEPS):
        started = time.perf_counter()
        _forward_and_backward(setup)
        times.append(1e3 * (time.perf_counter() - started))
    return {"ms": statistics.median(times)}


def _kernels(setup: Any) -> dict[str, float]:
    """Milliseconds on the GPU of the kernels that take most of one forward and backward."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        _forward_and_backward(setup)
    kernels = sorted(trace.key_averages(), key=lambda k: -k.device_time_total)[:25]
    return {f"{kernel.count} x {kernel.key[:90]}": kernel.device_time_total / 1e3 for kernel in kernels}


def _eager(setup: Any) -> dict[str, float]:
    from launcher.schema.generation import InferenceCudaGraphScope
    from launcher.schema.performance import CudaGraphImpl

    generation = replace(
        setup.config.generation,
        cuda_graph_impl=CudaGraphImpl.none,
        num_cuda_graphs=0,
        inference_cuda_graph_scope=InferenceCudaGraphScope.none,
    )
    return _generate(setup, config=replace(setup.config, generation=generation))


def _graphs(setup: Any) -> dict[str, float]:
    return _generate(setup, config=setup.config)


def _generate(setup: Any, *, config: Any) -> dict[str, float]:
    """Tokens per second of the decode steps, and seconds until the first token (engine, graphs, prefill)."""
    import torch
    from megatron.bridge.inference.text_generation import HFTokenizerAdapter
    from megatron.core.utils import unwrap_model

    from zero_kl.generate import generate
    from zero_kl.prompts import random_prompts

    job, stamps = config.job, [time.perf_counter()]
    prompts = random_prompts(job.num_prompts, min_tokens=1, max_tokens=job.max_prompt_tokens, vocab_size=300, seed=0)
    generate(
        unwrap_model(setup.model)[0],
        prompts=prompts,
        tokenizer=HFTokenizerAdapter(setup.finished.tokenizer),
        config=config,
        on_finished=lambda done, total: stamps.append(time.perf_counter()),
    )
    torch.cuda.synchronize()
    decoded = job.num_prompts * (config.generation.max_new_tokens - 1)
    return {"tokens_per_s": decoded / (stamps[-1] - stamps[1]), "first_s": stamps[1] - stamps[0]}


def main() -> int:
    """Measure and print; exit 1 where a mode gave no figure."""
    if sys.argv[1] == "--child":
        child_main(sys.argv[2:])
        return 0
    if sys.argv[1] == "--convert":
        return convert()
    out = Path(sys.argv[1])
    models = sys.argv[2].split(",") if len(sys.argv) > 2 else list(MODELS)
    results: dict[str, Any] = {}
    for model in models:
        started = time.monotonic()
        children = measure(model, out=out)
        results[model] = {c.mode: {"figures": c.figures, "error": c.error} for c in children}
        (out / "cost.json").write_text(json.dumps(results, indent=1))
        print(f"{model}: {time.monotonic() - started:.0f} s", flush=True)
    _print_table(results, out=out)
    return int(any(c["error"] for modes in results.values() for c in modes.values()))


def _print_table(results: dict[str, Any], *, out: Path) -> None:
    print(f"{'model':6s} {'figure':22s} " + " ".join(f"{mode:>20s}" for mode in MODES))
    rows = (("train", "ms"), ("generate", "tokens_per_s"), ("graphs", "tokens_per_s"), ("graphs", "first_s"))
    for model, modes in results.items():
        for phase, key in rows:
            base = _median(modes[TAKES_PART[phase][0]], phase=phase, key=key)
            cells = [_cell(_median(modes[mode], phase=phase, key=key), base=base) for mode in MODES]
            print(f"{model:6s} {phase + ' ' + key:22s} " + " ".join(f"{cell:>20s}" for cell in cells))
        for mode, result in modes.items():
            if result["error"]:
                print(result["error"], (out / f"cost_{model}_{mode}.log").read_text(errors="replace")[-1500:])


def _median(result: dict[str, Any], *, phase: str, key: str) -> float | None:
    rounds = result["figures"].get(phase, [])[1:]
    return statistics.median(r[key] for r in rounds) if rounds else None


def _cell(value: float | None, *, base: float | None) -> str:
    return "-" if value is None else f"{value:,.2f} ({value / base:.3f})" if base else f"{value:,.2f}"


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code) if sys.argv[1] == "--child" else sys.exit(code)

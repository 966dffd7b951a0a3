"""Runs named cases through the launcher on a GPU host, several at once where asked, and prints one table.

    python tests/gpu/cases.py OUT NAME[,NAME...] [NAME...]

Names joined by commas run side by side on the same GPU (for exactness, not for speed); words run one after another. Each
case's report.json, page and rank log are copied to OUT.
"""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

ZERO = ["+preset=zero_kl_hopper", "cluster=local"]
ORDINARY = ["platform=hopper", "generation=gpu", "model=qwen3_1b"]
MEGATRON = [*ZERO, "zero_kl=megatron", "zero_kl.required=true"]
MOE = ["model=qwen3_moe_1b"]
SMALL = ["model.hf_config.num_hidden_layers=2", "job.num_prompts=16", "job.num_steps=1", "generation.max_new_tokens=32"]

CASES = {
    "smoke": [*ZERO, *SMALL],
    "smoke_ordinary": [*ORDINARY, *SMALL],
    "smoke_megatron": [*MEGATRON, *SMALL],
    "smoke_moe": [*ZERO, *MOE, *SMALL],
}


def main() -> int:
    """Run the cases and print the table; exit 1 where a case left no report."""
    out, *groups = sys.argv[1:]
    failed = False
    for group in groups:
        started = [(name, _start(name, folder=Path(out))) for name in group.split(",")]
        for name, process in started:
            process.wait()
            failed |= not _keep(name, folder=Path(out), code=process.returncode)
    _print_table(Path(out), names=[n for g in groups for n in g.split(",")])
    return int(failed)


def _start(name: str, *, folder: Path) -> subprocess.Popen[bytes]:
    words = [*CASES[name], f"output_dir=/tmp/runs/{name}", f"job.name={name}"]
    log = (folder / f"{name}.txt").open("wb")
    print(f"{time.strftime('%H:%M:%S')} {name}: python -m launcher {' '.join(words)}", flush=True)
    return subprocess.Popen([sys.executable, "-m", "launcher", *words], stdout=log, stderr=subprocess.STDOUT)


def _keep(name: str, *, folder: Path, code: int) -> bool:
    """Copy what the case left; print the end of its output where it left no report."""
    reports = sorted(Path(f"/tmp/runs/{name}").glob("*/attempt_*/report.json"))
    logs = sorted(Path(f"/tmp/runs/{name}").glob("*/attempt_*/logs/*_0_log.out"))
    if logs:
        shutil.copy(logs[-1], folder / f"{name}.log")
    if reports:
        shutil.copy(reports[-1], folder / f"{name}.json")
    print(f"{time.strftime('%H:%M:%S')} {name}: exit {code}", flush=True)
    if not reports:
        print((folder / f"{name}.txt").read_text(errors="replace")[-900:], flush=True)
    return bool(reports)


def _print_table(folder: Path, *, names: list[str]) -> None:
    print(f"{'case':24s} {'verdict':9s} {'n':>8s} {'n_exact':>8s} {'max|d|':>9s} {'gen/s':>9s} {'score/s':>9s} {'update/s':>9s}")
    for name in names:
        path = folder / f"{name}.json"
        if not path.exists():
            print(f"{name:24s} no report")
            continue
        report = json.loads(path.read_text())
        total, rates = report["total"], [_median(report["throughput"], side) for side in ("generation", "training", "update")]
        print(
            f"{name:24s} {report['verdict']:9s} {total['n']:8d} {total['n_exact']:8d} {float(total['max_abs_diff']):9.2e} "
            + " ".join(f"{rate:9,.0f}" for rate in rates)
        )


def _median(throughput: list[dict[str, float]], side: str) -> float:
    """Tokens per second of the middle step, the first left out: it compiles kernels."""
    rates = sorted(t[f"{side}_tokens"] / t[f"{side}_s"] for t in throughput[1:] if t[f"{side}_s"])
    return rates[len(rates) // 2] if rates else float("nan")


if __name__ == "__main__":
    sys.exit(main())

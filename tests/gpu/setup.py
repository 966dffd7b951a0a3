"""Sets a Qwen3-shaped model of 1.3 B parameters up from a Hugging Face folder, and trains it for three steps.

    python tests/gpu/setup.py OUT

With the distributed optimizer, and with the optimizer offloaded to the host. Prints what every step of the set-up took
and the steps' losses; the same as JSON in OUT/setup_NAME.json. Exit 1 where a run fails.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path("/tmp/setup")
MODEL = [
    "model=qwen3_1b",
    "model.hf_config.num_hidden_layers=24",
    "platform=hopper",
    "generation=gpu",
    f"output_dir={ROOT}",
]
JOB = ["job=train", "job.num_steps=3", "job.num_prompts=8", "job.min_prompt_tokens=256", "job.max_prompt_tokens=1024"]
OPTIMIZERS = {"distributed": ["optimizer=adam"], "offload": ["optimizer=adam_cpu_offload"]}


def main() -> int:
    """Make the folder, run both, print; 1 where something failed."""
    out = Path(sys.argv[1])
    started = time.monotonic()
    if _launch([*MODEL, "job=convert"]).returncode:
        return 1
    (folder,) = (path for path in (ROOT / "cache" / "hf").iterdir() if path.is_dir())
    print(f"random Hugging Face folder made and converted in {time.monotonic() - started:.0f} s", flush=True)
    words = [f"model={folder}", *MODEL[2:], "model.seq_length=1024", *JOB]
    first_losses = [_run(name, words=[*words, *optimizer], out=out) for name, optimizer in OPTIMIZERS.items()]
    print(f"first losses equal: {len(set(first_losses)) == 1}", flush=True)
    return int(None in first_losses)


def _run(name: str, *, words: list[str], out: Path) -> float | None:
    """The loss of the first step; None where the run failed."""
    done = _launch([*words, f"job.name={name}"])
    attempts = sorted(ROOT.glob(f"{name}-*/attempt_1"))
    if done.returncode or not attempts:
        return None
    setup = json.loads((attempts[0] / "setup.json").read_text())
    steps = [json.loads(line) for line in (attempts[0] / "steps.jsonl").read_text().splitlines()]
    (out / f"setup_{name}.json").write_text(json.dumps({"setup": setup, "steps": steps}, indent=2))
    print(f"== {name}: {setup['parameters_per_rank']:,} parameters")
    for stage, used in setup["stages"].items():
        print(f"{stage:26s}" + "".join(f" {key} {value:7.2f}" for key, value in used.items()))
    for step in steps:
        print(
            f"step {step['step']} loss {step['loss']:.6f} {step['num_tokens'] / step['seconds']:,.0f} tok/s", flush=True
        )
    return steps[0]["loss"]


def _launch(words: list[str]) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "launcher", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        print(f"exit {done.returncode}: {' '.join(words)}\n{done.stdout[-1500:]}", flush=True)
    return done


if __name__ == "__main__":
    sys.exit(main())

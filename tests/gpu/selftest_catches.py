"""Does the self-test pass on a sound GPU node, and fail by the right check on each of four spoiled ones?

    python tests/gpu/selftest_catches.py FOLDER [CASE ...]

FOLDER has the wheels of flash-attn-4 4.0.0b19 and 4.0.0b36. Each case is a process of its own that goes around the
gates, so that the numbers alone must catch it; what the gates would have said stands beside it. The sound cases run
first and alone: their seconds count.
"""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

LIMIT_S = 20.0
WORDS = ["+preset=zero_kl_hopper", "cluster=local"]
CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


@dataclass(frozen=True, kw_only=True)
class Case:
    """`caught_by`: codes of checks that must find something, all of them; none: every check must hold.

    `flash_attn_4`: the version that stands before the installed one.
    """

    name: str
    caught_by: frozenset[str] = frozenset()
    words: tuple[str, ...] = ()
    flash_attn_4: str = ""


CASES = (
    Case(name="sound"),
    Case(name="sound, experts", words=("model=qwen3_moe_1b",)),
    Case(name="sound, flash-attn-4 b19", flash_attn_4="4.0.0b19"),
    Case(name="flash-attn-4 b36", caught_by=frozenset({"ZS010", "ZS011"}), flash_attn_4="4.0.0b36"),
    Case(name="CUBLAS :4096:8", caught_by=frozenset({"ZS001", "ZS028"})),
    Case(name="workspace unpatched", caught_by=frozenset({"ZS002", "ZS024"})),
    Case(name="num_splits 0", caught_by=frozenset({"ZS014"})),
)


def child(name: str) -> None:
    """Spoil this process as the case says, run the self-test, print its outcomes as one line of JSON."""
    (case,) = [case for case in CASES if case.name == name]
    if case.flash_attn_4:  # before the host's own site folders, which PYTHONPATH is not
        sys.path.insert(0, f"{os.environ['SIDE_FOLDER']}/{case.flash_attn_4}")
    from launcher.compose import compose
    from launcher.environment import environment, refusals
    from launcher.validate import read_architecture
    from zero_kl.versions import check_packages, installed_packages

    config = compose([*WORDS, *case.words]).config
    exported = {CUBLAS: ":4096:8"} if name == "CUBLAS :4096:8" else {}
    gates = [*refusals(config, exported=exported), *check_packages(config, installed=installed_packages()).violations]
    os.environ.update({**environment(config), **exported})

    import torch

    from zero_kl.kernels import enabled
    from zero_kl.selftest.runner import self_test

    torch.cuda.set_device(0)
    if name == "num_splits 0":
        mode = dataclasses.replace(config.zero_kl, batch_invariant_mode=False)
        config = dataclasses.replace(config, zero_kl=mode)
    kernels = (
        contextlib.nullcontext()
        if name == "workspace unpatched"
        else enabled(config.zero_kl, platform=config.platform.kind)
    )
    with kernels:
        outcomes = self_test(config, architecture=read_architecture(config.model))
    rows = [(o.check.code, o.check.name, o.seconds, o.found) for o in outcomes]
    print(json.dumps({"gates": gates, "rows": rows}))


def main(wheels: str, *, names: Sequence[str]) -> int:
    """Run the cases, all where none is named, and print the table; exit 1 where one is not as it must be."""
    cases = [case for case in CASES if case.name in (names or [case.name])]
    with tempfile.TemporaryDirectory() as folder:
        for version in {case.flash_attn_4 for case in cases} - {""}:
            zipfile.ZipFile(f"{wheels}/flash_attn_4-{version}-py3-none-any.whl").extractall(f"{folder}/{version}")
        environment = {**os.environ, "SIDE_FOLDER": folder, "PYTHONPATH": str(Path(__file__).parents[2])}
        sound = [(case, _finished(_started(case, environment=environment))) for case in cases if not case.caught_by]
        spoiled = [(case, _started(case, environment=environment)) for case in cases if case.caught_by]
        found = sound + [(case, _finished(process)) for case, process in spoiled]
    good = [_show(case, text=text) for case, text in found]
    print("every case is as it must be" if all(good) else "NOT every case is as it must be")
    return int(not all(good))


def _started(case: Case, *, environment: dict[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--case", case.name]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _finished(process: subprocess.Popen[str]) -> str:
    return process.communicate()[0]


def _show(case: Case, *, text: str) -> bool:
    """Print one case; True where it is as it must be."""
    lines = [line for line in text.splitlines() if line.startswith('{"gates"')]
    if not lines:
        print(f"== {case.name}: NO RESULT\n{text[-1500:]}")
        return False
    data = json.loads(lines[-1])
    seconds = sum(row[2] for row in data["rows"])
    failed = {row[0] for row in data["rows"] if row[3] is not None}
    good = case.caught_by <= failed if case.caught_by else not failed and seconds < LIMIT_S
    print(f"== {case.name}: {'as it must be' if good else 'NOT AS IT MUST BE'}, {seconds:.1f} s")
    for gate in data["gates"]:
        print(f"   gate: {gate.partition(chr(10))[0]}")
    for code, name, taken, found in data["rows"]:
        if found is not None or not case.caught_by:
            print(f"   {code} {name:24s} {taken:6.2f} s  {found or 'holds'}")
    return good


if __name__ == "__main__":
    if sys.argv[1:2] == ["--case"]:
        child(sys.argv[2])
    else:
        sys.exit(main(sys.argv[1], names=sys.argv[2:]))

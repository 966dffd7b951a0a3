"""The one screen about a run that failed: what of a log it shows."""

from pathlib import Path

from launcher.triage import Failure, triage

FAILURE = Failure(rank=1, text="error: rank 1 (on node2) was killed", exit_code=5)
CRASH = """Fatal Python error: Segmentation fault

Thread 0x00007f01 (most recent call first):
  File "threading.py", line 1 in wait

Current thread 0x00007f02 (most recent call first):
  File "kernel.py", line 7 in launch
"""


def shown(folder: Path, *, text: str) -> list[str]:
    log = folder / "log"
    log.write_text(text)
    lines = triage(FAILURE, log=log, root=folder).splitlines()
    assert lines[0] == "rank 1 failed first"
    return [line.removeprefix("  | ") for line in lines if line.startswith("  | ")]


def test_the_end_of_a_log_in_short_lines(tmp_path: Path) -> None:
    lines = shown(tmp_path, text="".join(f"line {n} {'x' * 300}\n" for n in range(100)))
    assert [line.split()[1] for line in lines] == [str(n) for n in range(88, 100)]
    assert max(map(len, lines)) == 160


def test_of_a_crash_where_it_was(tmp_path: Path) -> None:
    """faulthandler writes the innermost call first, and a long list of modules last."""
    callers = "".join(f'  File "caller.py", line {n} in f\n' for n in range(40))
    lines = shown(tmp_path, text=f"before\n{CRASH}{callers}\nExtension modules: numpy\nsrun: error: node2: task 1\n")
    assert lines[0] == "Fatal Python error: Segmentation fault"
    assert lines[1].startswith("Current thread")
    assert lines[2] == '  File "kernel.py", line 7 in launch'
    assert len(lines) == 12


def test_without_a_log(tmp_path: Path) -> None:
    assert triage(FAILURE, log=tmp_path / "none", root=tmp_path).endswith(f"run: {tmp_path}")

"""The README's first screen is a promise: its commands print what it shows."""

import re
from pathlib import Path

import pytest

from tests.launcher.runs import ROOT, launch

README = (ROOT / "README.md").read_text()


def shown_after(command: str) -> list[str]:
    """The output lines that the README shows under a command."""
    block = README.split(f"$ {command}", 1)[1].split("```", 1)[0]
    lines = block.splitlines()[1:]
    return [line.strip() for line in lines if line.strip() and not line.startswith("$")]


def make_target(name: str) -> list[str]:
    """The launcher's words in the Makefile's recipe of a target."""
    recipe = (ROOT / "Makefile").read_text().split(f"\n{name}:", 1)[1].splitlines()[1]
    return recipe.partition("-m launcher")[2].split()


def unwrapped(text: str, *, numbers: bool) -> str:
    """On one line, as a wide terminal shows it; without `numbers`, the count before "of" is left open."""
    line = " ".join(text.split())
    return line if numbers else re.sub(r"[\d,]+ of", "N of", line)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "numbers"),
    [("demo", True), ("ordinary", False)],  # how many tokens ordinary kernels leave equal depends on the processor
)
def test_the_first_screen_is_true(target: str, numbers: bool, tmp_path: Path) -> None:
    done = launch(*make_target(target), f"output_dir={tmp_path}")
    assert done.code == 0, done.text
    shown = shown_after(f"make {target}")
    assert shown
    for line in shown:
        assert unwrapped(line, numbers=numbers) in unwrapped(done.text, numbers=numbers)


def test_every_path_in_the_map_exists() -> None:
    rows = [line for line in README.splitlines() if line.startswith("| `")]
    assert rows
    for row in rows:
        path = row.split("`")[1]
        assert (ROOT / path).exists(), path

"""The ranks of a queued run import the copied code, whatever happens to the working tree afterwards."""

import subprocess
import sys
from pathlib import Path

from launcher.compose import compose
from launcher.paths import AttemptPaths, Outputs
from launcher.slurm.code import code_digest, copy_code
from launcher.slurm.parameters import parameters
from tests.launcher.runs import ROOT


def test_the_copy_is_made_once_and_shared(tmp_path: Path) -> None:
    first = copy_code(Outputs(tmp_path))
    (first / "mark").touch()
    assert copy_code(Outputs(tmp_path)) == first == tmp_path / "cache" / "code" / code_digest()
    assert (first / "mark").exists()
    assert [path.name for path in first.parent.iterdir()] == [first.name]
    assert {path.name for path in first.iterdir()} == {"launcher", "megatron_setup", "zero_kl", "mark"}
    assert not list(first.rglob("__pycache__"))


def test_the_scripts_exports_win_over_the_current_folder(tmp_path: Path) -> None:
    """The ranks start where the launcher was typed, which is often the checkout that is being edited."""
    code = copy_code(Outputs(tmp_path))
    (code / "launcher" / "__init__.py").write_text("print('the copy')")
    asked = parameters(compose(["cluster=slurm"]).config, attempt=AttemptPaths(tmp_path / "attempt_1"), code=code)
    script = "\n".join([*asked["setup"], f"{sys.executable} -m launcher.worker"])
    done = subprocess.run(["sh", "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "the copy\n"
    assert "usage: python -m launcher.worker" in done.stderr

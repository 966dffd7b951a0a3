"""The habits that a machine can check: sizes, signatures, names, imports."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("launcher", "megatron_setup", "zero_kl")
MODULES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
BANNED_NAMES = {"utils.py", "common.py", "helpers.py"}
MAX_LINES, MAX_DOCSTRING, MAX_FUNCTION = 300, 5, 60

# Signatures that a library dictates: torch.autograd.Function, aten overrides, megatron-core's own methods.
LIBRARY_CALLS_IT = (
    "megatron_setup/cpu",
    "zero_kl/cpu_kernels.py",
    "zero_kl/kernels",
    "megatron_setup/resharding_patches.py",
    "megatron_setup/value_model.py",
)


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_module_is_short_and_says_what_it_owns(path: Path) -> None:
    text = path.read_text()
    docstring = ast.get_docstring(ast.parse(text))
    assert path.name not in BANNED_NAMES
    assert docstring, "a module opens with a docstring"
    assert len(docstring.splitlines()) <= MAX_DOCSTRING
    assert len(text.splitlines()) <= MAX_LINES


def _functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    nodes = ast.walk(ast.parse(path.read_text()))
    return [n for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_functions_are_short(path: Path) -> None:
    long = [f.name for f in _functions(path) if f.end_lineno and f.end_lineno - f.lineno + 1 > MAX_FUNCTION]
    assert not long


def _public_functions(path: Path) -> list[ast.FunctionDef]:
    """Functions and methods without a leading underscore; those inside functions are details."""
    module = ast.parse(path.read_text())
    owners = [module, *(node for node in module.body if isinstance(node, ast.ClassDef))]
    found = [node for owner in owners for node in owner.body if isinstance(node, ast.FunctionDef)]
    return [function for function in found if not function.name.startswith("_")]


def _called_by_us(path: Path) -> bool:
    return not _name(path).startswith(LIBRARY_CALLS_IT)


@pytest.mark.parametrize("path", filter(_called_by_us, MODULES), ids=_name)
def test_one_positional_argument(path: Path) -> None:
    crowded: list[str] = []
    for function in _public_functions(path):
        arguments = [a.arg for a in function.args.posonlyargs + function.args.args if a.arg not in ("self", "cls")]
        if len(arguments) > 1:
            crowded.append(f"{function.name}({', '.join(arguments)})")
    assert not crowded


@pytest.mark.parametrize("path", sorted((ROOT / "tests").rglob("*.py")), ids=_name)
def test_no_mocks(path: Path) -> None:
    names = {n.id for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Name)}
    assert not names & {"MagicMock", "Mock", "patch"}, "a mock accepts a misspelt field; use the real thing"


def test_nothing_is_compared_with_a_tolerance_in_zero_kl() -> None:
    banned = ("allclose", "rtol", "atol", "isclose")
    found = [
        f"{_name(p)}: {word}" for p in MODULES if p.parts[-2] == "zero_kl" for word in banned if word in p.read_text()
    ]
    assert not found


TORCH_FREE = (
    "launcher.__main__",
    "launcher.attend",
    "launcher.compose",
    "launcher.explain",
    "launcher.gates",
    "launcher.plan",
    "launcher.rules",
    "launcher.run",
    "launcher.slurm.finish",
    "launcher.slurm.submission",
    "launcher.stages",
    "launcher.status",
    "launcher.steps",
    "launcher.submit",
    "launcher.sweep.finish",
    "launcher.sweep.run",
    "launcher.watch",
    "launcher.worker",
    "zero_kl.verdict",
    "zero_kl.console",
)


def test_the_launcher_imports_no_torch() -> None:
    heavy = {"torch", "megatron", "transformers"}
    code = f"import sys, {', '.join(TORCH_FREE)}; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"

"""Golden texts: `golden(text, name="layout/PL001.txt")` compares with the file under tests/golden.

`pytest --accept` writes what differs instead of failing. Loaded by `-p tests.plugin_golden`.
"""

import difflib
from collections.abc import Callable
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent / "golden"

Golden = Callable[..., None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--accept", action="store_true", help="write golden files that differ, instead of failing")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Fails with the diff and the command that accepts it; the file holds the text and one newline."""

    def compare(text: str, *, name: str) -> None:
        path = FOLDER / name
        expected = path.read_text() if path.exists() else ""
        if text + "\n" == expected:
            return
        if request.config.getoption("--accept"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
            return
        lines = difflib.unified_diff(
            expected.splitlines(), text.splitlines(), fromfile=f"tests/golden/{name}", tofile="now", lineterm=""
        )
        command = f"pytest --accept '{request.node.nodeid}'"
        pytest.fail("\n".join((*lines, "", f"if this is as it should be: {command}")), pytrace=False)

    return compare

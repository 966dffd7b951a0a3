from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from launcher.paths import Outputs, RunPaths


def test_attempts_are_ordered_by_number(tmp_path: Path) -> None:
    for n in (10, 9, 1):
        (tmp_path / f"attempt_{n}").mkdir()
    (tmp_path / "attempt_x").mkdir()
    assert [a.number for a in RunPaths(tmp_path).attempts()] == [1, 9, 10]


def test_the_next_attempt_follows_the_highest(tmp_path: Path) -> None:
    (tmp_path / "attempt_9").mkdir()
    assert RunPaths(tmp_path).new_attempt().number == 10


def test_launchers_at_once_get_different_attempts(tmp_path: Path) -> None:
    run = Outputs(tmp_path).run("tiny", digest="0123abcd")
    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(lambda _: run.new_attempt().number, range(16)))
    assert sorted(numbers) == list(range(1, 17))


def test_caches_are_not_runs(tmp_path: Path) -> None:
    outputs = Outputs(tmp_path)
    outputs.random_model("abc").mkdir(parents=True)
    outputs.run("tiny", digest="0123abcd").new_attempt()
    assert [r.root.name for r in outputs.runs()] == ["tiny-0123abcd"]

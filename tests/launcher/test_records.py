import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from launcher.paths import RunPaths
from launcher.records import ProgressReader, ProgressWriter, RankState, read_ranks, write_rank


def test_records_come_back_by_rank(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path).new_attempt()
    write_rank(paths, rank=10, state=RankState.FAILED, exit_code=3, error="no GPU")
    write_rank(paths, rank=9, state=RankState.RUNNING)
    nine, ten = read_ranks(paths)
    assert (nine.rank, nine.state, nine.is_gone) == (9, RankState.RUNNING, False)
    assert (ten.rank, ten.state, ten.exit_code, ten.error) == (10, RankState.FAILED, 3, "no GPU")


def test_a_killed_rank_is_gone(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path).new_attempt()
    write_rank(paths, rank=0, state=RankState.RUNNING)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (record,) = read_ranks(paths)
    assert replace(record, pid=dead.pid).is_gone
    assert not replace(record, pid=dead.pid, state=RankState.FINISHED).is_gone
    assert not replace(record, pid=dead.pid, host="elsewhere").is_gone


def test_progress_is_read_once_and_only_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    reader = ProgressReader(path)
    assert list(reader.new_events()) == []
    ProgressWriter(path)("score", done=1, total=2, unit="sequences")
    ProgressWriter(None)("score", done=2, total=2)
    (event,) = reader.new_events()
    assert (event.stage, event.done, event.total, event.unit) == ("score", 1, 2, "sequences")
    with path.open("a") as file:
        file.write('{"stage": "half')
    assert list(reader.new_events()) == []

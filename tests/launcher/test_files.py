from pathlib import Path

import pytest

from launcher.files import read_json, write_json, write_text


def test_round_trip(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", data={"x": [1, None]})
    assert read_json(tmp_path / "a.json") == {"x": [1, None]}
    assert read_json(tmp_path / "absent.json") is None


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    write_text(target, text="old")
    with pytest.raises(TypeError):
        write_json(target, data={"x": object()})
    with pytest.raises(UnicodeEncodeError):
        write_text(target, text="\ud800")
    assert target.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]

"""Which save is taken: by tracker, by number, never a half-written one; and what a folder is that holds none."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from launcher.schema.model import CheckpointFormat
from megatron_setup.iterations import NotACheckpointError, find_iteration, newest_iteration, newest_save

BRIDGE, MEGATRON_LM = CheckpointFormat.megatron_bridge, CheckpointFormat.megatron_lm
FILES = (".metadata", "metadata.json", "run_config.yaml")


def save(root: Path, *names: str, without: Sequence[str] = ()) -> Path:
    for name in names:
        folder = root / name
        folder.mkdir(parents=True)
        for file in FILES:
            if file not in without:
                (folder / file).write_text('{"sharded_backend": "torch_dist"}' if file == "metadata.json" else "")
    return root


def track(root: Path, text: str) -> None:
    root.mkdir(exist_ok=True)
    (root / "latest_checkpointed_iteration.txt").write_text(text)


def refusal(path: Path, *, format: CheckpointFormat = BRIDGE) -> NotACheckpointError:
    with pytest.raises(NotACheckpointError) as caught:
        find_iteration(path, format=format)
    return caught.value


@pytest.mark.parametrize(
    ("names", "tracker", "taken"),
    [
        (["iter_9", "iter_10"], None, "iter_10"),
        (["iter_0000002", "iter_0000010"], None, "iter_0000010"),
        (["iter_0000000"], "0\n", "iter_0000000"),
        (["iter_0000005", "iter_0000010"], "5", "iter_0000005"),
        (["iter_0000005", "release"], "release", "release"),
        (["iter_0000005", "release"], None, "iter_0000005"),
        (["release"], None, "release"),
    ],
)
def test_taken(names: list[str], tracker: str | None, taken: str, tmp_path: Path) -> None:
    save(tmp_path, *names)
    (tmp_path / "iter_latest").mkdir()
    if tracker is not None:
        track(tmp_path, tracker)
    newest = newest_save(tmp_path)
    assert newest is not None
    assert newest.path == tmp_path / taken
    by = "the highest number" if tracker is None else "latest_checkpointed_iteration.txt"
    assert newest.chosen.startswith(f"{taken}, by {by}")


@pytest.mark.parametrize("missing", FILES)
@pytest.mark.parametrize("tracker", [None, "10"])
def test_a_half_written_one_is_passed_over(missing: str, tracker: str | None, tmp_path: Path) -> None:
    """With or without a tracker: Bridge writes it before the last file."""
    save(tmp_path, "iter_0000009")
    save(tmp_path, "iter_0000010", without=[missing])
    if tracker is not None:
        track(tmp_path, tracker)
    newest = newest_save(tmp_path)
    assert newest is not None
    assert newest.path.name == "iter_0000009"
    assert newest.chosen.endswith(f"; iter_0000010 passed over, not written to its end: no {missing}")


def test_nothing_whole_is_nothing(tmp_path: Path) -> None:
    assert newest_save(tmp_path / "absent") is None
    save(tmp_path, "iter_0000001", without=["metadata.json"])
    assert newest_save(tmp_path) is None
    assert "none of iter_0000001 was written to its end" in str(refusal(tmp_path))


@pytest.mark.parametrize("text", ["", "the last one", "-1", "1e3", "iter_0000010", "۱۰", "\x80\x03ctorch"])
def test_nonsense_in_the_tracker_is_refused(text: str, tmp_path: Path) -> None:
    save(tmp_path, "iter_0000010")
    track(tmp_path, text)
    with pytest.raises(NotACheckpointError, match=r"latest_checkpointed_iteration.txt with .*a number or release"):
        newest_save(tmp_path)


@pytest.mark.parametrize("text", ["7", "release"])
def test_a_tracker_that_names_nothing_is_refused(text: str, tmp_path: Path) -> None:
    save(tmp_path, "iter_0000009", "iter_0000010")
    track(tmp_path, text)
    with pytest.raises(NotACheckpointError, match=f"'{text}' beside iter_0000010, iter_0000009, the folder that"):
        newest_save(tmp_path)


def test_an_iteration_is_named_by_its_path(tmp_path: Path) -> None:
    save(tmp_path, "iter_0000003", "iter_0000004")
    assert find_iteration(tmp_path / "iter_0000003", format=BRIDGE).path == tmp_path / "iter_0000003"


def test_megatron_lm_writes_no_run_config(tmp_path: Path) -> None:
    save(tmp_path, "iter_0000003", without=["run_config.yaml"])
    found = newest_iteration(tmp_path, format=MEGATRON_LM)
    assert found is not None
    assert found.path.name == "iter_0000003"
    refused = refusal(tmp_path / "iter_0000003")
    assert refused.found.endswith("a folder without run_config.yaml")
    assert refused.hints == ("model.pretrained_checkpoint.format=megatron_lm",)


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ([], "nothing of a checkpoint"),
        (["config.json", "model.safetensors"], "a Hugging Face folder"),
        (["mp_rank_00"], "Megatron-LM's older format"),
        ([".metadata"], "without metadata.json"),
    ],
)
def test_other_formats_are_named(files: list[str], found: str, tmp_path: Path) -> None:
    for file in files:
        (tmp_path / file).touch()
    assert found in refusal(tmp_path, format=MEGATRON_LM).found


@pytest.mark.parametrize("text", ['{"sharded_backend": "zarr"}', "{", "[]"])
def test_other_backends_are_refused(text: str, tmp_path: Path) -> None:
    save(tmp_path, "iter_0000001")
    (tmp_path / "iter_0000001" / "metadata.json").write_text(text)
    assert "torch_dist in metadata.json" in refusal(tmp_path / "iter_0000001").found


def test_no_folder(tmp_path: Path) -> None:
    assert refusal(tmp_path / "absent").found == f"{tmp_path / 'absent'}, which is no folder"

"""The steps of a training job: written exactly, shown within a terminal."""

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from launcher.steps import StepRecord, append_step, read_steps, render_steps

STEP = StepRecord(
    step=1000,
    loss=10.79449462890625,
    terms={"nll": 10.794494, "kl": 0.1 + 0.2, "draft": 12.5},
    value_loss=1.25,
    grad_norm=267321.4,
    lr=3e-4,
    num_tokens=1_048_576,
    seconds=0.75,
)


def _shown(steps: list[StepRecord]) -> list[str]:
    console = Console(width=80, record=True)
    console.print(render_steps(steps))
    return console.export_text().splitlines()


def test_what_is_written_reads_back_to_the_bit(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    assert read_steps(path) == []
    for number in (1, 2):
        append_step(path, record=replace(STEP, step=number))
    assert read_steps(path) == [replace(STEP, step=1), replace(STEP, step=2)]


def test_every_column_fits_a_terminal() -> None:
    text = "\n".join(_shown([STEP]))
    assert "…" not in text
    for word in ("10.7945", "0.3000", "12.5000", "1.2500", "2.673e+05", "3.0e-04", "1,398,101"):
        assert word in text


def test_a_long_run_shows_its_ends() -> None:
    lines = _shown([replace(STEP, step=number) for number in range(1, 101)])
    assert [line.split()[0] for line in lines if line.split()[:1] in ([str(n)] for n in (1, 6, 95, 100))]
    assert not any(line.split()[:1] == ["50"] for line in lines)

"""The job `train` through the whole pipeline on gloo ranks: a resumed run equals an unbroken one, bit for bit."""

import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.compose import compose
from launcher.errors import Interrupted
from launcher.paths import AttemptPaths
from launcher.steps import StepRecord, read_steps
from tests.worlds import RankError, run_world

pytestmark = pytest.mark.usefixtures("cpu_platform")

JOB = ["job=train", "job.num_prompts=8", "checkpoint=save", "checkpoint.save_interval=1"]
SIZES = ["model.seq_length=64", "performance.micro_batch_size=2"]
REFERENCE = ["model.reference_model=true", "job.reference_kl_weight=0.5"]
SCHEDULE = ["optimizer.scheduler.lr_decay_style=cosine", "optimizer.scheduler.lr_warmup_iters=1"]


def _train(words: Sequence[str], *, attempt: Path, resume_from: Sequence[Path], asked_after: int = 0) -> str:
    """One rank of the job, from the checkpoint to the last save; what interrupted it.

    With `asked_after` the last rank, and no other, gets the warning of a time limit after that step.
    """
    from torch.distributed import TCPStore

    from launcher.jobs.train import train
    from megatron_setup.apply import Setup, apply, close
    from megatron_setup.distributed import leave_world

    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    paths = AttemptPaths(attempt)

    def progress(stage: str, *, done: int, total: int, unit: str = "") -> None:
        if (stage, done, rank) == ("train", asked_after or None, world_size - 1):
            os.kill(os.getpid(), signal.SIGUSR2)

    setup = Setup(
        config=compose(words).config,
        rank=rank,
        world_size=world_size,
        store=TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), world_size, is_master=rank == 0),
        progress=progress,
        check_provider=lambda _: None,
        saves_folder=paths.saves,
        container_file=paths.megatron,
        resume_from=tuple(resume_from),
    )
    apply(setup)
    try:
        train(setup, paths=paths)
        close(setup)
    except Interrupted as end:
        return str(end)
    finally:
        leave_world()
    return ""


def _run(
    words: Sequence[str], *, folder: Path, ranks: int, resume_from: Sequence[Path] = (), steps: int = 3
) -> list[StepRecord]:
    """The steps of a run that starts in `folder`, without the time they took."""
    folder.mkdir()
    words = [*JOB, *SIZES, *words, f"job.num_steps={steps}", f"output_dir={folder.parent}/outputs"]
    run_world(
        _train, num_ranks=ranks, joined=False, timeout_s=240, words=words, attempt=folder, resume_from=resume_from
    )
    return [replace(record, seconds=0.0) for record in read_steps(AttemptPaths(folder).steps)]


VARIANTS = {
    "dense": (["model=tiny", *SCHEDULE], 1),
    "moe": (["model=tiny_moe"], 1),
    "dp2": (["model=tiny", "parallelism=dp2"], 2),
    "tp2": (["model=tiny", "parallelism=tp2"], 2),
    "pp2": (["model=tiny", "parallelism=pp2"], 2),
    "ep2": (["model=tiny_moe", "parallelism=ep2"], 2),
    "lora": (["model=tiny", "model.peft.enabled=true"], 1),
    "draft": (["model=tiny", "model.draft.enabled=true"], 1),
    "offload": (["model=tiny", "optimizer=adam_cpu_offload", "parallelism=dp2"], 2),
    "value": (["model=tiny", "model.value.enabled=true", "model.value.lr=0.01", "parallelism=dp2"], 2),
    "reference": (["model=tiny", *REFERENCE], 1),
    "reference_of_lora": (["model=tiny", "model.peft.enabled=true", "parallelism=dp2", *REFERENCE], 2),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_resumed_run_goes_on_as_if_unbroken(name: str, tmp_path: Path) -> None:
    words, ranks = VARIANTS[name]
    unbroken = _run(words, folder=tmp_path / "unbroken", ranks=ranks)
    assert [record.step for record in unbroken] == [1, 2, 3]
    assert len({record.loss for record in unbroken}) == 3
    saves = AttemptPaths(tmp_path / "unbroken").saves
    (saves / "iter_0000003" / "complete.json").unlink()  # as if killed while it was written
    resumed = _run(words, folder=tmp_path / "resumed", ranks=ranks, resume_from=[saves])
    assert resumed == unbroken[2:]


@pytest.mark.parametrize("lora", [False, True])
def test_the_reference_is_the_policy_before_its_first_step(lora: bool, tmp_path: Path) -> None:
    words = ["model=tiny", f"model.peft.enabled={lora}".lower(), *REFERENCE]
    first, second, _ = _run(words, folder=tmp_path / "run", ranks=1)
    assert first.terms["kl"] == 0.0
    assert second.terms["kl"] > 0.0
    assert second.loss == second.terms["nll"] + 0.5 * second.terms["kl"]


def test_a_save_is_continued_by_a_longer_run(tmp_path: Path) -> None:
    """The schedule is the new run's, the place in it the save's; a damaged iteration is passed over."""
    short = _run(["model=tiny"], folder=tmp_path / "short", ranks=1)
    saves = AttemptPaths(tmp_path / "short").saves
    (saves / "iter_0000003" / ".metadata").unlink()
    longer = _run(["model=tiny", f"checkpoint.load={saves}"], folder=tmp_path / "long", ranks=1, steps=5)
    assert [record.step for record in longer] == [3, 4, 5]
    assert longer[0] == short[2]


def test_a_save_of_more_steps_than_the_run_takes_is_refused(tmp_path: Path) -> None:
    _run(["model=tiny"], folder=tmp_path / "run", ranks=1)
    saves = AttemptPaths(tmp_path / "run").saves
    with pytest.raises(RankError, match=r"job\.num_steps is 2, the save in .*iter_0000003 has more"):
        _run(["model=tiny", f"checkpoint.load={saves}"], folder=tmp_path / "shorter", ranks=1, steps=2)


def test_the_newest_saves_are_kept(tmp_path: Path) -> None:
    _run(["model=tiny", "checkpoint.most_recent_k=2"], folder=tmp_path / "run", ranks=1)
    kept = sorted(path.name for path in AttemptPaths(tmp_path / "run").saves.glob("iter_*"))
    assert kept == ["iter_0000002", "iter_0000003"]


@pytest.mark.slow
def test_a_save_in_the_background_is_the_same_save(tmp_path: Path) -> None:
    """Two writers of their own, ended with their ranks; a resumed run goes on from what they wrote."""
    words = ["model=tiny", "parallelism=dp2", "checkpoint.async_save=true", "checkpoint.async_strategy=mcore"]
    unbroken = _run(words, folder=tmp_path / "unbroken", ranks=2)
    saves = AttemptPaths(tmp_path / "unbroken").saves
    (saves / "iter_0000003" / "complete.json").unlink()
    assert _run(words, folder=tmp_path / "resumed", ranks=2, resume_from=[saves]) == unbroken[2:]


ASYNC = ["checkpoint.async_save=true", "checkpoint.async_strategy=mcore"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "more"), [("value", []), ("dp2", ASYNC)], ids=["value", "async"])
def test_a_signal_to_one_rank_ends_all_after_the_same_step_with_its_save(
    name: str, more: Sequence[str], tmp_path: Path
) -> None:
    """No save was due; a value model's is written too. The run goes on with the bits of one that nobody asked."""
    variant, ranks = VARIANTS[name]
    unbroken = _run(variant, folder=tmp_path / "unbroken", ranks=ranks, steps=4)

    (tmp_path / "asked").mkdir()
    without_interval = [*JOB[:-1], *SIZES, *variant, *more]
    words = [*without_interval, "job.num_steps=4", f"output_dir={tmp_path}/outputs"]
    said = run_world(
        _train,
        num_ranks=ranks,
        joined=False,
        timeout_s=240,
        words=words,
        attempt=tmp_path / "asked",
        resume_from=(),
        asked_after=2,
    )
    assert said == ["interrupted by SIGUSR2 after step 2, saved\nhint: the same command goes on there"] * ranks
    asked = AttemptPaths(tmp_path / "asked")
    assert [record.step for record in read_steps(asked.steps)] == [1, 2]
    resumed = _run([*variant, *more], folder=tmp_path / "on", ranks=ranks, resume_from=[asked.saves], steps=4)
    assert resumed == unbroken[2:]

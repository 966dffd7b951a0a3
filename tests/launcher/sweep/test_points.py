"""Every point has one fate, with its reason; what is priced and grouped; what a person reads of it."""

from pathlib import Path

import pytest

from launcher.compose import compose, group_options
from launcher.errors import ConfigError
from launcher.outcome import write_outcome
from launcher.schema.cluster import ClusterKind
from launcher.submission import write_submission
from launcher.submit import write_attempt
from launcher.sweep.expand import expand
from launcher.sweep.groups import chunks, group_points
from launcher.sweep.points import Point, State, count, judge, recognise, sweep_digest
from launcher.sweep.text import render_count, render_judged
from launcher.validate import validate
from tests.command_line import retyped
from tests.plugin_golden import Golden

TWELVE = (
    *("-m", "cluster=slurm", "platform=hopper", "job.num_prompts=320", "cluster.max_gpus=4"),
    *("parallelism=single,tp2,pp2,ep2", "job.seed=1,2,1"),
)
"""Three of a dense model cannot spread experts, one of each other three is asked twice."""


def judged(*words: str) -> tuple[Point, ...]:
    return judge(expand(words, options=group_options()))


def test_twelve_points() -> None:
    points = judged(*TWELVE)
    assert [p.state for p in points] == [State.NEW, State.NEW, State.DUPLICATE] * 3 + [State.PRUNED] * 3
    assert [p.twin for p in points if p.twin] == [1, 4, 7]
    assert count(points) == {
        State.NEW: 6,
        State.PRUNED: 3,
        State.DUPLICATE: 3,
        State.FINISHED: 0,
        State.RUNNING: 0,
    }
    assert render_count(points) == "12 expected = 6 to run + 3 pruned + 3 duplicate + 0 finished + 0 running"


def test_a_person_reads(golden: Golden) -> None:
    expansion = expand(TWELVE, options=group_options())
    points = judge(expansion)
    text = render_judged(expansion, points=points, groups=group_points(points))
    golden(text, name="sweep/twelve.txt")
    _, tables = text.split("   # GROUP")
    assert max(map(len, tables.splitlines())) <= 80


def test_what_is_typed_for_a_pruned_point_makes_it_valid() -> None:
    """The layout's rows all hint at the one nearest layout that satisfies them all."""
    point, _ = judged("-m", "parallelism.pipeline_model_parallel_size=3,2", "parallelism.tensor_model_parallel_size=2")
    assert point.state is State.PRUNED
    lines = [line for reason in point.reasons for line in reason.splitlines()]
    hints = [hint for line in lines if line.startswith("hint: ") for hint in line.split()[1:]]
    validate(compose(retyped(point.composed.overrides, hints=hints)).config).raise_if_invalid()


def test_words_that_cannot_be_composed_refuse_the_sweep_and_each_is_said_once() -> None:
    with pytest.raises(ConfigError) as caught:
        judged("-m", "parallelism=tp22,single", "job.seed=a,1")
    text = str(caught.value)
    assert text.startswith("error: 3 of 4 points cannot be composed; nothing is started")
    assert text.count("parallelism has no option tp22") == 1
    assert text.count("job.seed cannot be a") == 1


@pytest.mark.parametrize("words", [("cluster=local,slurm",), ("output_dir=a,b",), ("force=true,false",)])
def test_a_sweep_runs_in_one_way(words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="a sweep needs one for all points"):
        judged("-m", *words)


def test_a_file_that_is_not_there_prunes() -> None:
    (point, valid) = judged("-m", "job.prompts=/nowhere/a.jsonl,null")
    assert (point.state, valid.state) == (State.PRUNED, State.NEW)
    assert "there is no such file" in point.reasons[0]


def test_the_name_of_a_run_makes_no_other_question() -> None:
    assert [p.state for p in judged("-m", "job.name=a,b")] == [State.NEW, State.DUPLICATE]


def test_groups_share_all_that_sbatch_is_asked() -> None:
    points = judged(*TWELVE, "cluster.timeout_min=60")
    groups = group_points(points)
    assert [[p.number for p in g.points] for g in groups] == [[1, 2], [4, 5, 7, 8]]
    assert [g.gpu_hours for g in groups] == [2.0, 8.0]
    assert [g.at_once for g in groups] == [4, 2]
    limits = group_points(
        judged(
            "-m",
            "cluster=slurm",
            "cluster.timeout_min=30,60",
            "job.seed=1,2",
            "sweep.zip=[cluster.timeout_min,job.seed]",
        )
    )
    assert [g.plan.timeout_min for g in limits] == [30, 60]


@pytest.mark.parametrize(("n", "size", "parts"), [(5, 4, [2, 3]), (4, 4, [4]), (9, 4, [3, 3, 3]), (0, 4, [])])
def test_chunks_are_even_and_lose_nothing(n: int, size: int, parts: list[int]) -> None:
    points = judged("-m", "job.seed=range(0,9)")[:n]
    found = list(chunks(points, size=size))
    assert [len(part) for part in found] == parts
    assert [p for part in found for p in part] == list(points)


def test_the_sweeps_name_is_its_questions() -> None:
    one = sweep_digest(judged("-m", "job.seed=1,2,3"))
    assert one == sweep_digest(judged("-m", "job.seed=3,1,2,2"))
    assert one != sweep_digest(judged("-m", "job.seed=1,2"))


def test_finished_and_running_points_are_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed is missing still. With force=true all are."""
    monkeypatch.setattr("launcher.submit.git_state", lambda: {"commit": "c", "tree": "clean"})
    words = ("-m", "job.seed=1,2,3,4", f"output_dir={tmp_path}")
    finished, running, failed, _ = judged(*words)
    for point, state in ((finished, "finished"), (running, ""), (failed, "failed")):
        attempt = write_attempt(point.composed, plan=point.priced)
        write_submission(attempt, cluster=ClusterKind.local, job="1")
        if state:
            write_outcome(attempt, state=state, exit_code=0)
    states = [p.state for p in recognise(judged(*words))]
    assert states == [State.FINISHED, State.RUNNING, State.NEW, State.NEW]
    assert {p.state for p in recognise(judged(*words, "force=true"))} == {State.NEW}

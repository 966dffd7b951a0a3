"""From words to points: Hydra's own grammar and order, and the three settings that Hydra does not have."""

import pytest
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser

from launcher.compose import group_options
from launcher.errors import ConfigError
from launcher.sweep.expand import Expansion, expand, is_sweep

OPTIONS = group_options()


def points(*words: str) -> list[str]:
    return [" ".join(point) for point in expand(words, options=OPTIONS).points]


@pytest.mark.parametrize(
    "words",
    [
        ("parallelism=single,tp2", "optimizer.lr=1e-4,3e-4"),
        ("job.seed=range(0,5,2)", "model.name='a,b','c d'", "force=true,false"),
        ("+preset=zero_kl,zero_kl_cpu", "job.seed=choice(3,1)", "job.prompts=null,a.jsonl"),
        ("moe.moe_router_dtype=sort(fp64,fp32)", "optimizer.lr=1e-4"),
        ("+model.hf_config.rope={a:1},{a:2}", "cluster.setup=[a],[b,c]"),
    ],
)
def test_points_are_hydras(words: tuple[str, ...]) -> None:
    (expected,) = BasicSweeper.split_arguments(OverridesParser.create().parse_overrides(list(words)), None)
    found = expand(words, options=OPTIONS)
    swept = [[word for word in point if word not in _fixed_as_hydra(found)] for point in expected]
    assert [list(point) for point in found.points] == swept


def _fixed_as_hydra(expansion: Expansion) -> set[str]:
    overrides = OverridesParser.create().parse_overrides(list(expansion.fixed))
    return {f"{o.get_key_element()}={o.get_value_element_as_str()}" for o in overrides}


def test_a_glob_means_the_options_of_the_group() -> None:
    assert points("parallelism=glob([tp*,pp2],exclude=*_sp)") == ["parallelism=pp2", "parallelism=tp2"]


def test_the_flag_may_stand_anywhere_and_is_no_override() -> None:
    found = expand(["job.seed=1,2", "--multirun", "parallelism=tp2"], options=OPTIONS)
    assert found.fixed == ("parallelism=tp2",)
    assert found.words(found.points[1]) == ("parallelism=tp2", "job.seed=2")
    assert is_sweep(["a=1", "-m"])
    assert not is_sweep(["a=1,2"])


def test_one_value_of_everything_is_one_point() -> None:
    assert points("parallelism=tp2") == [""]


def test_zip_goes_together_and_beside_the_product() -> None:
    words = ("optimizer.lr=1e-4,3e-4", "job.seed=1,2", "parallelism=tp2,pp2")
    assert points(*words, "sweep.zip=[optimizer.lr,job.seed]") == [
        "optimizer.lr=0.0001 job.seed=1 parallelism=tp2",
        "optimizer.lr=0.0001 job.seed=1 parallelism=pp2",
        "optimizer.lr=0.0003 job.seed=2 parallelism=tp2",
        "optimizer.lr=0.0003 job.seed=2 parallelism=pp2",
    ]


def test_two_zips() -> None:
    words = ("optimizer.lr=1,2", "job.seed=1,2", "parallelism=tp2,pp2", "model=tiny,tiny_moe")
    found = points(*words, "sweep.zip=[[optimizer.lr,job.seed],[parallelism,model]]")
    assert len(found) == 4
    assert found[1] == "optimizer.lr=1 job.seed=1 parallelism=pp2 model=tiny_moe"


def test_points_may_be_written_out() -> None:
    assert points("sweep.points=[{parallelism:tp2,optimizer.lr:1e-4},{job.prompts:null}]", "job.seed=1,2") == [
        "job.seed=1 parallelism=tp2 optimizer.lr=0.0001",
        "job.seed=1 job.prompts=null",
        "job.seed=2 parallelism=tp2 optimizer.lr=0.0001",
        "job.seed=2 job.prompts=null",
    ]


def test_exclusions_leave_out_and_are_counted() -> None:
    words = ("parallelism=tp2,pp2", "optimizer.lr=1e-4,3e-4", "sweep.exclude=[{parallelism:tp2,optimizer.lr:3e-4}]")
    found = expand(words, options=OPTIONS)
    assert [" ".join(point) for point in found.points] == [
        "parallelism=tp2 optimizer.lr=0.0001",
        "parallelism=pp2 optimizer.lr=0.0001",
        "parallelism=pp2 optimizer.lr=0.0003",
    ]
    assert found.num_excluded == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("optimizer.lr=interval(1,2)",), r"has no end of values.*\nhint: optimizer.lr=range\(1.0,2.0\)"),
        (("parallelism=glob(x*)",), "names no value\n  options of parallelism: dp2, "),
        (("job.seed=1,2", "job.seed=3,4"), "job.seed is set twice"),
        (("job.seed=1,2", "job.seed=3"), "job.seed is set twice"),
        (("sweep.zipp=[a,b]",), "sweep.zipp is no setting of a sweep; there are sweep.zip, "),
        (("sweep.zip=job.seed",), r"cannot be read as a list\nhint: 'sweep.zip="),
        (("sweep.exclude=[1]",), "cannot be read as a list"),
        (("job.seed=1,2", "sweep.zip=[job.seed,optimizer.lr]"), "names optimizer.lr, which has no list of values"),
        (
            ("optimizer.lr=1,2", "job.seed=1,2", "sweep.zip=[optimizer.lrr,job.seed]"),
            r"names optimizer.lrr, which .*\nhint: 'sweep.zip=\[optimizer.lr,job.seed\]'",
        ),
        (
            ("job.seed=1,2", "optimizer.lr=1,2,3", "sweep.zip=[job.seed,optimizer.lr]"),
            "job.seed has 2 values.*\nhint: optimizer.lr=1,2$",
        ),
        (
            ("parallelism=tp2,pp2", "job.seed=1,2", "sweep.exclude=[{parallelism:pp22,job.seed:2}]"),
            r"names job.seed=2 parallelism=pp22, .*\nhint: 'sweep.exclude=\[{job.seed:2,parallelism:pp2}\]'",
        ),
        (
            ("job.seed=1,2", "sweep.exclude=[{job.seed:1},{job.seed:2}]"),
            "sweep.exclude leaves none of the 2 points\nhint: ",
        ),
        (("job.seed=1", "sweep.exclude=[{job.seed:1}]"), "names job.seed=1, no point has that$"),
    ],
)
def test_what_cannot_be_expanded_is_refused(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        expand(words, options=OPTIONS)

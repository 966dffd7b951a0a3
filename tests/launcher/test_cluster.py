"""Every row about the cluster: what breaks it, the error's exact text, and what repairs it."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest

from launcher.cluster import REQUIREMENTS
from launcher.compose import compose
from launcher.requirement import Requirement, Severity, Subject, Violation, check_all, render
from launcher.slurm.options import KEYS, LAUNCHERS
from launcher.slurm.parameters import SUBMITITS
from launcher.slurm.shape import derive_shape
from launcher.validate import read_architecture, validate
from tests.command_line import retyped
from tests.plugin_golden import Golden

GPU = ("platform=hopper", "job.num_prompts=320")
SLURM = (*GPU, "cluster=slurm")
NVL72 = (*GPU, "cluster=gb200_nvl72")
EXPERTS = ("model=qwen3_moe_1b", "parallelism.expert_model_parallel_size=16")

BROKEN: dict[str, tuple[str, ...]] = {
    "CL001": (*SLURM, "cluster.gpus_per_node=0"),
    "CL002": ("cluster.timeout_min=0",),
    "CL003": ("cluster=slurm", "cluster.nodes=0"),
    "CL004": ("cluster=slurm", "cluster.cpus_per_task=0"),
    "CL005": ("cluster=slurm", "cluster.nodes_per_nvlink_domain=0"),
    "CL006": ("cluster=slurm", "cluster.segment=0"),
    "CL007": ("cluster=slurm", "cluster.max_gpus=0"),
    "CL008": ("cluster=slurm", "cluster.max_array_size=0"),
    "CL009": ("cluster=slurm", "cluster.timeout_min=1", "cluster.signal_delay_s=0", "cluster.max_timeout_min=0"),
    "CL035": (*SLURM, "cluster.min_free_gpu_memory_gb=0"),
    "CL039": (*SLURM, "cluster.ranks_per_gpu=0"),
    "CL010": (*SLURM, "cluster.num_processes=8", "cluster.nodes=3"),
    "CL011": (*SLURM, "cluster.num_processes=16", "cluster.nodes=1"),
    "CL012": (*SLURM, "cluster.num_processes=20"),
    "CL013": (*GPU, "cluster.num_processes=16"),
    "CL028": (*SLURM, "cluster.ranks_per_gpu=2", "cluster.min_free_gpu_memory_gb=60"),
    "CL019": ("cluster.max_gpu_hours=-1",),
    "CL014": (*SLURM, "cluster.num_processes=16", "cluster.max_gpu_hours=4.5"),
    "CL015": ("cluster=slurm", "cluster.timeout_min=2"),
    "CL016": ("cluster=slurm", "cluster.timeout_min=2000", "cluster.signal_delay_s=70000"),
    "CL017": (*SLURM, "cluster.num_processes=16", "cluster.max_gpus=8"),
    "CL018": ("cluster=slurm", "cluster.timeout_min=480", "cluster.max_timeout_min=240"),
    "CL020": ("cluster=slurm", "+cluster.sbatch={partition:debug,ntasks-per-node:3,requeue:true,time:90}"),
    "CL021": ("cluster=slurm", "+cluster.sbatch={hold:false,nodelist:null}"),
    "CL022": ("cluster=slurm", "cluster.mem=200G", "+cluster.sbatch.mem-per-gpu=20G"),
    "CL023": (
        *("cluster=slurm", "cluster.cpu_bind=ldoms"),
        "cluster.srun_args=['--cpu-bind=cores','--mpi=none','--distribution=cyclic']",
    ),
    "CL027": ("cluster=slurm", "+cluster.sbatch={licences:matlab,partiton:debug,spank-option:x}"),
    "CL024": ("cluster=slurm", "cluster.restarts.timeout=-1"),
    "CL025": ("cluster=slurm", "cluster.restarts.preempted=-1"),
    "CL026": ("cluster=slurm", "cluster.restarts.node_failure=-1"),
    "CL030": (*NVL72, "cluster.num_processes=64", "cluster.segment=12"),
    "CL031": (*NVL72, *EXPERTS, "cluster.num_processes=64", "cluster.segment=2"),
    "CL032": (*NVL72, "cluster.nodes_per_nvlink_domain=2", *EXPERTS, "cluster.num_processes=64"),
    "CL033": ("platform=hopper", "cluster=gb200_nvl72", "cluster.num_processes=148", "job.num_prompts=5328"),
    "CL034": (*SLURM, "cluster.num_processes=16", "cluster.segment=5"),
    "CL036": ("cluster.min_free_gpu_memory_gb=60",),
    "CL037": ("cluster.peer_access=false",),
    "CL038": ("cluster.ranks_per_gpu=2",),
    "CL040": ("cluster=slurm", "cluster.container_image=image.sqsh"),
    "CL041": ("cluster=slurm", "cluster.container_workdir=/work"),
    "CL042": ("cluster=slurm", "cluster.container_mounts=[/data:/data]"),
    "CL043": ("cluster=slurm", "cluster.container_env=[HF_HOME]"),
    "CL050": ("cluster.account=team",),
    "CL051": ("cluster.partition=debug",),
    "CL052": ("cluster.qos=high",),
    "CL053": ("cluster.reservation=night",),
    "CL054": ("cluster.nodes=2",),
    "CL055": ("cluster.cpus_per_task=4",),
    "CL056": ("cluster.mem=200G",),
    "CL057": ("cluster.constraint=h200",),
    "CL058": ("cluster.exclude=node7",),
    "CL059": ("cluster.exclusive=true",),
    "CL060": ("cluster.nodes_per_nvlink_domain=18",),
    "CL061": ("cluster.segment=4",),
    "CL062": ("cluster.signal_delay_s=120",),
    "CL063": ("cluster.mail_type=END",),
    "CL064": ("cluster.mail_user=me",),
    "CL065": ("cluster.setup=[module load cuda]",),
    "CL066": ("cluster.python=python3",),
    "CL067": ("cluster.srun_args=['--cpu-bind=verbose']",),
    "CL068": ("+cluster.sbatch.nodelist=node7",),
    "CL069": ("cluster.container_image=image.sqsh",),
    "CL070": ("cluster.container_workdir=/work",),
    "CL071": ("cluster.container_mounts=[/data:/data]",),
    "CL072": ("cluster.container_env=[HF_HOME]",),
    "CL073": ("cluster.max_gpus=8",),
    "CL074": ("cluster.cpu_bind=cores",),
    "CL075": ("cluster.max_timeout_min=240",),
    "CL076": ("cluster.max_array_size=1001",),
    "CL077": ("cluster.restarts.timeout=1",),
    "CL078": ("cluster.restarts.preempted=1",),
    "CL079": ("cluster.restarts.node_failure=1",),
    "CL080": ("cluster.exclude_refused_nodes=true",),
}
SHARED_GPUS: dict[str, tuple[str, ...]] = {
    "CL011": (*SLURM, "cluster.num_processes=64", "cluster.ranks_per_gpu=2", "cluster.nodes=2"),
    "CL012": (*SLURM, "cluster.num_processes=20", "cluster.ranks_per_gpu=3", "cluster.gpus_per_node=3"),
    "CL013": (*GPU, "cluster.num_processes=32", "cluster.ranks_per_gpu=3"),
}
NO_HINT = {"CL032"}
"""Only another layout or another cluster helps."""

PLACES = [row for row in REQUIREMENTS if row.code in ("CL010", "CL011", "CL012")]
"""Whether the ranks have a place on the nodes of a Slurm job."""


def violations(words: Sequence[str]) -> dict[str, Violation]:
    config = compose(words).config
    subject = Subject(config=config, architecture=read_architecture(config.model))
    return {v.row.code: v for v in check_all(REQUIREMENTS, subject=subject)}


def test_every_row_has_a_case() -> None:
    assert [row.code for row in REQUIREMENTS] == list(BROKEN)


def test_error_texts(golden: Golden) -> None:
    golden("\n\n".join(render(violations(words)[code]) for code, words in BROKEN.items()), name="cluster.txt")


@pytest.mark.parametrize("code", [code for code in BROKEN if code not in NO_HINT])
def test_hint_repairs(code: str) -> None:
    finding = violations(BROKEN[code])[code].finding
    assert finding.hints
    assert code not in violations(retyped(BROKEN[code], hints=finding.hints))


@pytest.mark.parametrize("code", BROKEN)
def test_all_hints_together_repair_the_run(code: str) -> None:
    found = validate(compose(BROKEN[code]).config)
    hints = [hint for v in (*found.violations, *found.warnings) for hint in v.finding.hints]
    validate(compose(retyped(BROKEN[code], hints=hints)).config).raise_if_invalid()


def test_error_texts_where_ranks_share_gpus(golden: Golden) -> None:
    texts = [render(violations(words)[code]) for code, words in SHARED_GPUS.items()]
    golden("\n\n".join(texts), name="cluster_shared_gpus.txt")


@pytest.mark.parametrize("code", SHARED_GPUS)
def test_hints_repair_where_ranks_share_gpus(code: str) -> None:
    words = SHARED_GPUS[code]
    validate(compose(retyped(words, hints=violations(words)[code].finding.hints)).config).raise_if_invalid()


@pytest.mark.parametrize(
    ("ranks", "shared", "gpus", "hints"),
    [
        (16, 2, 8, None),
        (17, 2, 8, ("cluster.gpus_per_node=9",)),
        (24, 3, 8, None),
        (25, 3, 8, ("cluster.gpus_per_node=9",)),
        (2, 2, 1, None),
        (2, 1, 1, ("cluster.gpus_per_node=2",)),
        (2, 3, 1, None),
        (2, 0, 1, ("cluster.gpus_per_node=2",)),
        (2, -1, 2, None),
    ],
)
def test_the_gpus_that_ranks_of_one_machine_share(
    ranks: int, shared: int, gpus: int, hints: tuple[str, ...] | None
) -> None:
    """CL013. What CL039 refuses counts as 1, so that its hint and this one together repair the run."""
    words = (f"cluster.num_processes={ranks}", f"cluster.ranks_per_gpu={shared}", f"cluster.gpus_per_node={gpus}")
    found = violations((*GPU, *words)).get("CL013")
    assert (found and found.finding.hints) == hints


@pytest.mark.parametrize(
    ("ranks", "shared", "gpus", "hints"),
    [
        (32, 2, 8, None),
        (20, 2, 8, ("cluster.gpus_per_node=5",)),
        (20, 8, 2, ("cluster.ranks_per_gpu=5",)),
        (20, 3, 3, ("cluster.gpus_per_node=2", "cluster.ranks_per_gpu=2")),
        (20, 0, 8, ("cluster.gpus_per_node=5",)),
    ],
)
def test_full_nodes_of_shared_gpus(ranks: int, shared: int, gpus: int, hints: tuple[str, ...] | None) -> None:
    """CL012. As many ranks on a GPU as were asked for, where any number of GPUs allows it."""
    words = (f"cluster.num_processes={ranks}", f"cluster.ranks_per_gpu={shared}", f"cluster.gpus_per_node={gpus}")
    found = violations((*SLURM, *words)).get("CL012")
    assert (found and found.finding.hints) == hints


@pytest.mark.parametrize("nodes", [None, 1, 2, 3])
def test_what_no_row_refuses_has_a_place_for_every_rank(nodes: int | None) -> None:
    """Counted: every node has as many ranks and the GPUs for them, and each GPU that is paid is some rank's."""
    config = compose(SLURM).config
    for ranks, gpus, shared in product(range(1, 41), range(1, 5), range(1, 5)):
        cluster = replace(config.cluster, num_processes=ranks, nodes=nodes, gpus_per_node=gpus, ranks_per_gpu=shared)
        subject = Subject(config=replace(config, cluster=cluster), architecture=None)
        shape = derive_shape(subject.config)
        taken = {(rank // shape.ranks_per_node, rank % shape.ranks_per_node // shared) for rank in range(ranks)}
        paid = set(product(range(shape.nodes), range(shape.gpus_per_node)))
        even = shape.nodes * shape.ranks_per_node == ranks
        fits = even and taken == paid and shape.gpus_per_node <= gpus
        assert fits is not any(check_all(PLACES, subject=subject)), (ranks, gpus, shared)


@pytest.mark.parametrize("row", REQUIREMENTS, ids=lambda row: row.code)
def test_row_is_complete(row: Requirement) -> None:
    assert row.why
    assert row.source
    assert row.when.who


def test_warnings_are_about_placement_and_options_that_a_plugin_may_bring() -> None:
    warnings = {row.code for row in REQUIREMENTS if row.severity is Severity.WARNING}
    assert warnings == {"CL027", "CL031", "CL032", "CL033"}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("cluster.num_processes=76", "cluster.segment=19"), "CL030"),
        (("cluster.segment=19",), "CL030"),
        (("cluster.segment=3",), "CL030"),
        (("cluster.segment=3", "cluster.nodes_per_nvlink_domain=null"), "CL034"),
        (("cluster.segment=1",), None),
        (("cluster.segment=1", "cluster.nodes_per_nvlink_domain=null"), None),
    ],
)
def test_a_segment_is_kept_or_refused_never_dropped(words: tuple[str, ...], code: str | None) -> None:
    assert set(violations((*NVL72, *words))) == ({code} if code else set())


@pytest.mark.parametrize(
    ("entry", "hint"),
    [
        ("partition=high", "cluster.partition=high"),
        ("time=10", "cluster.timeout_min=10"),
        ("job-name=mine", "job.name=mine"),
        ("mem=200G", "cluster.mem=200G"),
        ("time='1:00:00'", ""),
        ("gres=gpu:8", ""),
        ("partition='a,b'", ""),
    ],
)
def test_an_option_with_a_key_hints_at_the_key_where_it_takes_the_value(entry: str, hint: str) -> None:
    """Typed beside what was there, the hint repairs: the entry is set and then taken out."""
    words = ["cluster=slurm", f"+cluster.sbatch.{entry}"]
    hints = violations(words)["CL020"].finding.hints
    assert hints == (*([hint] if hint else []), f"~cluster.sbatch.{entry.partition('=')[0]}")
    assert "CL020" not in violations([*words, *hints])


def test_an_option_of_a_plugin_is_left_alone() -> None:
    assert violations(["cluster=slurm", "+cluster.sbatch.gpu-freq=high", "+cluster.sbatch.my-plugin=x"]) == {}


def test_every_parameter_of_submitit_is_a_key_or_the_launchers_or_free() -> None:
    """A new version of submitit brings new ones; each then needs a decision."""
    from submitit import SlurmExecutor

    named = SlurmExecutor._valid_parameters()
    assert named == {n for n in (*KEYS, *LAUNCHERS, *SUBMITITS) if n in named}
    assert named >= SUBMITITS
    assert not SUBMITITS & {*KEYS, *LAUNCHERS}


def test_a_budget_that_no_time_limit_meets_is_raised() -> None:
    words = (*SLURM, "cluster.num_processes=16", "cluster.max_gpu_hours=0.1")
    assert violations(words)["CL014"].finding.hints == ("cluster.max_gpu_hours=16",)

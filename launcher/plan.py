"""What would be done, as data and as text: ranks, GPUs, hours, environment, command or sbatch script.

Starts nothing and needs no Slurm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from launcher.environment import environment
from launcher.identity import digest, run_name
from launcher.paths import AttemptPaths, Outputs, RunPaths
from launcher.requirement import render
from launcher.schema import JobKind, RunConfig
from launcher.schema.cluster import ClusterKind
from launcher.schema.layout import Layout, derive_layout
from launcher.slurm.code import code_digest
from launcher.slurm.parameters import container_variables, sbatch_text
from launcher.slurm.shape import derive_shape, expert_group_size, expert_groups_inside, gpu_hours, num_time_limits
from launcher.validate import Validation

_COMMANDS = {
    ClusterKind.local: "python -m launcher.worker RUN_FOLDER/attempt_N",
    ClusterKind.slurm: "sbatch, with the script that `python -m launcher plan` shows",
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The run before it is started. `gpu_hours` is at the time limit."""

    name: str
    digest: str
    run_folder: str
    cluster: str
    platform: str
    layout: Layout
    num_nodes: int
    processes_per_node: int
    num_gpus: int
    """What is paid: whole nodes where they are exclusive."""

    gpu_hours: float
    timeout_min: int
    time_limits: int
    """How many of them the GPU-hours count: restarts after a timeout are among them."""

    at_time_limit: str
    """What happens there, in words."""

    environment: dict[str, str]
    command: str
    segment: int | None
    """Nodes that share an NVLink domain for certain; null where a domain is a node."""

    expert_groups: int
    """0 for a layout without expert parallelism."""

    expert_groups_inside: int
    """Those inside one NVLink domain for certain."""

    cpu_bind: str | None
    """What a rank is bound to, in srun's word; null as the cluster does."""

    container_variables: tuple[str, ...]
    """Exported variables that win over the image's; none without a container."""

    sbatch: str
    """Slurm's script, whole, with N for the attempt's number; empty for a local run."""

    rules_checked: int
    warnings: tuple[str, ...]

    @property
    def run(self) -> RunPaths:
        """The run's folder."""
        return RunPaths(Path(self.run_folder))

    def to_json(self) -> dict[str, Any]:
        """As plan.json holds it."""
        return asdict(self)


def make_plan(config: RunConfig, *, validation: Validation) -> Plan:
    """The plan of a valid configuration."""
    layout, shape = derive_layout(config), derive_shape(config)
    name, code = run_name(config), digest(config)
    outputs = Outputs(Path(config.output_dir))
    run = outputs.run(name, digest=code)
    inside, groups = expert_groups_inside(layout, shape=shape) if expert_group_size(layout) > 1 else (0, 0)
    return Plan(
        name=name,
        digest=code,
        run_folder=str(run.root),
        cluster=config.cluster.kind.value,
        platform=config.platform.kind.value,
        layout=layout,
        num_nodes=shape.nodes,
        processes_per_node=shape.ranks_per_node,
        num_gpus=shape.num_gpus,
        gpu_hours=round(gpu_hours(config), 2),
        timeout_min=config.cluster.timeout_min,
        time_limits=num_time_limits(config),
        at_time_limit=_at_time_limit(config),
        environment=environment(config),
        command=_COMMANDS[config.cluster.kind],
        segment=shape.segment,
        expert_groups=groups,
        expert_groups_inside=inside,
        cpu_bind=config.cluster.cpu_bind.value if config.cluster.cpu_bind is not None else None,
        container_variables=container_variables(config),
        sbatch=_script(config, outputs=outputs, run=run),
        rules_checked=validation.num_checked,
        warnings=tuple(render(v) for v in validation.warnings),
    )


def _script(config: RunConfig, *, outputs: Outputs, run: RunPaths) -> str:
    if config.cluster.kind is not ClusterKind.slurm:
        return ""
    return sbatch_text(config, attempt=AttemptPaths(run.root / "attempt_N"), code=outputs.code(code_digest()))


def _at_time_limit(config: RunConfig) -> str:
    cluster = config.cluster
    if cluster.kind is not ClusterKind.slurm:
        return "the run ends"
    if not config.checkpoint.save:
        return "the job ends and nothing of it is saved; with checkpoint=save it would be"
    trains = config.job.kind is JobKind.train
    saved = f"all ranks save {cluster.signal_delay_s} s before" if trains else "saves are made as scheduled"
    return f"{saved}; requeued up to {cluster.restarts.timeout} time(s)"


def render_plan(plan: Plan, *, overrides: Sequence[str]) -> str:
    """The plan for a person; 80 columns except for long paths."""
    layout = plan.layout
    rows = [
        ("run", plan.run_folder),
        ("overrides", " ".join(overrides) or "(none)"),
        ("platform", f"{plan.platform}, cluster {plan.cluster}"),
        ("ranks", f"{layout.world_size} = {plan.num_nodes} node(s) x {plan.processes_per_node}{_sharing(plan)}"),
        (
            "layout",
            f"TP {layout.tensor_model_parallel_size} x CP {layout.context_parallel_size} "
            f"x PP {layout.pipeline_model_parallel_size} x DP {layout.data_parallel_size}"
            f"; experts: ETP {layout.expert_tensor_parallel_size} x EP {layout.expert_model_parallel_size}",
        ),
        ("GPUs", f"{plan.num_gpus}, at most {plan.gpu_hours} GPU-hours ({_limits(plan)})"),
        ("time limit", f"{plan.timeout_min} min: {plan.at_time_limit}"),
        *_placement_rows(plan),
        ("rules", f"{plan.rules_checked} hold, {len(plan.warnings)} warning(s)"),
        ("command", plan.command),
        *_container_rows(plan),
        *(("environment" if i == 0 else "", f"{k}={v}") for i, (k, v) in enumerate(sorted(plan.environment.items()))),
    ]
    return "\n".join(f"{label:12s} {value}" for label, value in rows)


def _sharing(plan: Plan) -> str:
    """A rehearsal is said to be one."""
    gpus = plan.num_gpus // plan.num_nodes
    return f", sharing {gpus} GPU(s)" if 0 < gpus < plan.processes_per_node else ""


def _limits(plan: Plan) -> str:
    return f"{'' if plan.time_limits == 1 else f'{plan.time_limits} x '}{plan.timeout_min} min limit"


def _placement_rows(plan: Plan) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    if plan.segment is not None:
        rows.append(
            ("segments", f"{plan.num_nodes // plan.segment} of {plan.segment} node(s), each in one NVLink domain")
        )
    if plan.expert_groups:
        rows.append(("experts", f"{plan.expert_groups_inside} of {plan.expert_groups} expert groups inside one domain"))
    if plan.cpu_bind is not None:
        rows.append(("binding", f"each rank to {plan.cpu_bind}, where the cluster has TaskPlugin=task/affinity"))
    return rows


def _container_rows(plan: Plan) -> list[tuple[str, str]]:
    """Whose variables a rank in a container has."""
    if not plan.container_variables:
        return []
    return [
        ("container", f"these win over the image's: {' '.join(plan.container_variables)}"),
        ("", "of all others the image's values win over those exported here"),
        ("", "the environment below is set by each rank; an image with another value of it is refused"),
    ]

"""What would be done, as data and as text: ranks, GPUs, hours, environment, the command of each rank. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from launcher.environment import environment
from launcher.identity import digest, run_name
from launcher.paths import Outputs, RunPaths
from launcher.requirement import render
from launcher.schema import PlatformKind, RunConfig
from launcher.schema.layout import Layout, derive_layout
from launcher.validate import Validation


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
    gpu_hours: float
    timeout_min: int
    environment: dict[str, str]
    command: str
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
    layout = derive_layout(config)
    on_gpu = config.platform.kind is not PlatformKind.cpu
    per_node = min(layout.world_size, config.cluster.gpus_per_node) if on_gpu else layout.world_size
    num_gpus = layout.world_size if on_gpu else 0
    name, code = run_name(config), digest(config)
    return Plan(
        name=name,
        digest=code,
        run_folder=str(Outputs(Path(config.output_dir)).run(name, digest=code).root),
        cluster=config.cluster.kind.value,
        platform=config.platform.kind.value,
        layout=layout,
        num_nodes=math.ceil(layout.world_size / per_node),
        processes_per_node=per_node,
        num_gpus=num_gpus,
        gpu_hours=round(num_gpus * config.cluster.timeout_min / 60, 2),
        timeout_min=config.cluster.timeout_min,
        environment=environment(config),
        command="python -m launcher.worker RUN_FOLDER/attempt_N",
        rules_checked=validation.num_checked,
        warnings=tuple(render(v) for v in validation.warnings),
    )


def render_plan(plan: Plan, *, overrides: Sequence[str]) -> str:
    """The plan for a person; 80 columns except for long paths."""
    layout = plan.layout
    rows = [
        ("run", plan.run_folder),
        ("overrides", " ".join(overrides) or "(none)"),
        ("platform", f"{plan.platform}, cluster {plan.cluster}"),
        ("ranks", f"{layout.world_size} = {plan.num_nodes} node(s) x {plan.processes_per_node}"),
        (
            "layout",
            f"TP {layout.tensor_model_parallel_size} x CP {layout.context_parallel_size} "
            f"x PP {layout.pipeline_model_parallel_size} x DP {layout.data_parallel_size}"
            f"; experts: ETP {layout.expert_tensor_parallel_size} x EP {layout.expert_model_parallel_size}",
        ),
        ("GPUs", f"{plan.num_gpus}, at most {plan.gpu_hours} GPU-hours ({plan.timeout_min} min limit)"),
        ("rules", f"{plan.rules_checked} hold, {len(plan.warnings)} warning(s)"),
        ("command", plan.command),
        *(("environment" if i == 0 else "", f"{k}={v}") for i, (k, v) in enumerate(sorted(plan.environment.items()))),
    ]
    return "\n".join(f"{label:12s} {value}" for label, value in rows)

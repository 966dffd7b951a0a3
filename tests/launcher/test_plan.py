"""The plan of the presets, as text; a changed plan is accepted with `pytest --accept`."""

from dataclasses import replace

import pytest

from launcher.compose import compose
from launcher.plan import make_plan, render_plan
from launcher.validate import validate
from tests.plugin_golden import Golden

CASES = {
    "zero_kl": ("+preset=zero_kl",),
    "zero_kl_hopper_ep8": ("+preset=zero_kl_hopper", "model=qwen3_moe_1b", "parallelism.expert_model_parallel_size=8"),
    "two_nodes": ("+preset=zero_kl", "parallelism.data_parallel_size=16", "cluster.timeout_min=30"),
    "zero_kl_cpu": ("+preset=zero_kl_cpu",),
}


@pytest.mark.parametrize("name", CASES)
def test_plan(name: str, golden: Golden) -> None:
    config = compose(CASES[name]).config
    validation = validate(config)
    validation.raise_if_invalid()
    plan = make_plan(config, validation=validation)
    golden(render_plan(replace(plan, rules_checked=0), overrides=CASES[name]), name=f"plan/{name}.txt")

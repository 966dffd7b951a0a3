"""Variables of the recipe: what a run sets, and what exported is refused, each with its exact text."""

import pytest

from launcher.compose import compose
from tests.plugin_golden import Golden
from zero_kl.environment import VARIABLES, Variable, check_exported, environment

GPU, CPU = "+preset=zero_kl", "+preset=zero_kl_cpu"
HUB = (GPU, "model=hf", "model.hf_path=organisation/name")
FIGHTS = {
    "ZE001": ":4096:8",
    "ZE002": "32768",
    "ZE003": "0",
    "ZE004": "1",
    "ZE005": "1",
    "ZE006": "1",
    "ZE007": "",
    "ZE008": "0",
    "ZE009": "0",
}


@pytest.mark.parametrize("row", VARIABLES, ids=lambda row: row.code)
def test_refusal_text(row: Variable, golden: Golden) -> None:
    (text,) = check_exported(compose(HUB).config, exported={row.name: FIGHTS[row.code]})
    golden(text, name=f"zero_kl/{row.code}.txt")


@pytest.mark.parametrize("backend", ["te_native", "megatron"])
def test_what_the_run_sets_is_not_refused(backend: str) -> None:
    config = compose([GPU, f"zero_kl={backend}"]).config
    wanted = environment(config)
    assert check_exported(config, exported={"PATH": "/bin", "MAMBA_DETERMINISTIC": "1", **wanted}) == []
    assert ("CUBLAS_WORKSPACE_CONFIG" in wanted) is (backend == "te_native")


@pytest.mark.parametrize("overrides", [(CPU,), (), ("platform=hopper",)])
def test_other_runs_set_and_refuse_nothing(overrides: tuple[str, ...]) -> None:
    config = compose(overrides).config
    assert environment(config) == {}
    assert check_exported(config, exported={row.name: FIGHTS[row.code] for row in VARIABLES}) == []


def test_every_conflict_is_listed_at_once() -> None:
    exported = {row.name: FIGHTS[row.code] for row in VARIABLES}
    assert len(check_exported(compose(HUB).config, exported=exported)) == len(VARIABLES)

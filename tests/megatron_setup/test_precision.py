"""Number formats as model and optimizer are given them; the rules are tested in test_tables.py."""

import pytest

from launcher.compose import compose
from megatron_setup.optimizer import optimizer_fields
from megatron_setup.precision import provider_fields


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32", "fp8"])
def test_model_and_optimizer_agree(precision: str) -> None:
    config = compose(["platform=hopper", f"precision={precision}"]).config
    model, optimizer = provider_fields(config), optimizer_fields(config)
    shared = ("params_dtype", "bf16", "fp16")
    assert [model[name] for name in shared] == [optimizer[name] for name in shared]
    assert model["params_dtype"] is model["pipeline_dtype"] is model["autocast_dtype"] is config.precision.dtype
    assert (model["bf16"], model["fp16"]) == (precision in ("bf16", "fp8"), precision == "fp16")

"""Secrets are named, exported and never written."""

import pytest

from launcher.compose import compose
from launcher.errors import ConfigError
from launcher.secrets import check_secrets

SECRET = "hf_0123456789"


def check(*words: str, **exported: str) -> None:
    composed = compose(words)
    check_secrets(composed.config, overrides=composed.overrides, exported=exported)


def test_a_named_one_must_be_exported() -> None:
    check("cluster.secrets=[A_TOKEN]", A_TOKEN=SECRET)
    with pytest.raises(ConfigError, match="hint: export A_TOKEN="):
        check("cluster.secrets=[A_TOKEN]", HF_TOKEN=SECRET)


@pytest.mark.parametrize("name", ["A_TOKEN", "HF_TOKEN"])
def test_a_value_in_the_configuration_is_refused_and_not_repeated(name: str) -> None:
    words = ("cluster=slurm", "cluster.secrets=[A_TOKEN]", f"cluster.setup=[export TOKEN_OF_MINE {SECRET}]")
    with pytest.raises(ConfigError, match=f"holds the value of {name}") as refused:
        check(*words, **{"A_TOKEN": "another-token", name: SECRET})
    assert SECRET not in str(refused.value)


def test_a_short_value_may_stand_anywhere_by_chance() -> None:
    check("cluster.secrets=[A_TOKEN]", A_TOKEN="1")

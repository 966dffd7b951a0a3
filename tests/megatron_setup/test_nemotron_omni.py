"""Nemotron-Omni: the installed Bridge declares nothing about media tokens that a rule could look at, and zero-KL
refuses the model. A Bridge that declares it fails the first test: then a rule is due.
"""

import importlib.metadata

import pytest


def test_bridge_declares_no_expanded_sequences() -> None:
    files = importlib.metadata.files("megatron-bridge")
    assert files
    sources = [file.locate() for file in files if file.suffix == ".py"]
    assert any(source.match("nemotron_omni/nemotron_omni_provider.py") for source in sources)
    assert [source for source in sources if b"expanded_sequence" in source.read_bytes()] == []


@pytest.mark.usefixtures("cpu_platform")
def test_zero_kl_refuses_it() -> None:
    from megatron.bridge.models.nemotron_omni.nemotron_omni_provider import NemotronOmniModelProvider

    from zero_kl.architectures import check_provider

    (text,) = check_provider(NemotronOmniModelProvider()).violations
    assert text.startswith("error[ZK081]: NemotronOmniModelProvider has Mamba layers")

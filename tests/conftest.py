"""Fixtures for every test."""

import logging
import os

import pytest


@pytest.fixture(scope="session")
def cpu_platform() -> None:
    """The CPU platform with megatron imported, once for the whole session (it takes most of a minute on two cores).

    A test that uses megatron asks for this fixture and imports megatron inside the test. Worlds of several ranks are
    forked from this process (`tests.worlds`), so torch must be on one thread before its first parallel region.
    """
    # Else the first tokenizer starts a thread pool, which a forked world inherits without its threads and waits for.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"

    import torch

    from megatron_setup import cpu

    torch.set_num_threads(1)
    cpu.install()
    logging.getLogger("megatron").setLevel(logging.ERROR)

"""Taking a GPU on a machine that has none: the node is refused by name, before CUDA is asked for anything else."""

import socket

import pytest
import torch

from launcher.compose import compose
from launcher.errors import ExitCode, NodeError
from launcher.jobs.health import take_gpu


@pytest.mark.skipif(torch.cuda.device_count() > 0, reason="there are GPUs here")
def test_a_machine_without_gpus_is_refused_by_name() -> None:
    words = ("platform=hopper", "cluster.num_processes=2", "cluster.min_free_gpu_memory_gb=100")
    with pytest.raises(NodeError) as caught:
        take_gpu(compose(words).config, local_rank=1)
    assert caught.value.exit_code is ExitCode.ENVIRONMENT
    refusal = f"error[HP001]: {socket.gethostname()} is refused: GPUs of the node: 0 visible GPU(s), the run needs 2"
    assert str(caught.value).startswith(refusal)
    assert "HP002" not in str(caught.value)

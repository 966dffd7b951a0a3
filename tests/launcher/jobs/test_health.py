"""Taking a GPU on a machine that may have none: which one a rank takes, and that a node is refused by name."""

import socket
from importlib.metadata import distributions

import pytest
import torch

from launcher.compose import compose
from launcher.errors import ExitCode, NodeError
from launcher.jobs import health
from launcher.preflight import Gpus

NCCL = {d.version for d in distributions() if d.name.startswith("nvidia-nccl-cu")}
NO_GPU = pytest.mark.skipif(torch.cuda.device_count() > 0, reason="there are GPUs here")
ONE_NCCL = pytest.mark.skipif(len(NCCL) != 1, reason="not one package with an NCCL")
WORDS = ("platform=hopper", "cluster.num_processes=4")


class Looks:
    """In the place of `look_at_gpus`: answers for a fit node that has just the GPUs it is asked about."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, bool]] = []

    def __call__(self, *, own: int, num_gpus: int, shared: bool) -> Gpus:
        self.asked.append((own, num_gpus, shared))
        return Gpus(num_visible=num_gpus, own=own, free_gb=1.0, total_gb=1.0, nccl=(2, 30, 7) if shared else None)


@NO_GPU
def test_a_machine_without_gpus_is_refused_by_name() -> None:
    words = ("platform=hopper", "cluster.num_processes=2", "cluster.min_free_gpu_memory_gb=100")
    with pytest.raises(NodeError) as caught:
        health.take_gpu(compose(words).config, local_rank=1)
    assert caught.value.exit_code is ExitCode.ENVIRONMENT
    refusal = f"error[HP001]: {socket.gethostname()} is refused: GPUs of the node: 0 visible GPU(s), the run needs 2"
    assert str(caught.value).startswith(refusal)
    assert "HP002" not in str(caught.value)


@pytest.mark.parametrize(
    ("shared", "taken", "num_gpus"), [(1, [0, 1, 2, 3], 4), (2, [0, 0, 1, 1], 2), (3, [0, 0, 0, 1], 2)]
)
def test_consecutive_ranks_share_a_gpu(
    shared: int, taken: list[int], num_gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Looks()
    monkeypatch.setattr(health, "look_at_gpus", looks)
    config = compose((*WORDS, f"cluster.ranks_per_gpu={shared}")).config
    for local_rank in range(4):
        health.take_gpu(config, local_rank=local_rank)
    assert looks.asked == [(own, num_gpus, shared > 1) for own in taken]


def test_a_gpu_that_does_not_answer_is_named_by_its_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU's, not the rank's."""

    def fails(*, own: int, num_gpus: int, shared: bool) -> Gpus:
        raise RuntimeError(f"CUDA error of {own}, {num_gpus}, {shared}")

    monkeypatch.setattr(health, "look_at_gpus", fails)
    with pytest.raises(NodeError, match="GPU 1 does not answer: CUDA error of 1, 2, True"):
        health.take_gpu(compose((*WORDS, "cluster.ranks_per_gpu=2")).config, local_rank=3)


@NO_GPU
@ONE_NCCL
def test_nccl_is_asked_where_ranks_share_a_gpu() -> None:
    """The library that torch has loaded says its own version."""
    assert health.look_at_gpus(own=0, num_gpus=1, shared=False).nccl is None
    nccl = health.look_at_gpus(own=0, num_gpus=1, shared=True).nccl
    assert nccl is not None
    assert {".".join(map(str, nccl))} == NCCL

"""The CPU platform in force: every row of its table, `cuda` meaning the CPU, what is hidden, and what is refused."""

import importlib
from collections.abc import Callable

import pytest
import torch

from launcher.errors import NodeError
from megatron_setup import cpu
from megatron_setup.cpu.absent import HIDDEN, import_megatron
from megatron_setup.cpu.replacement import Constant, Replacement, apply_replacements, find_name
from megatron_setup.cpu.table import MEGATRON, TORCH

pytestmark = pytest.mark.usefixtures("cpu_platform")

ROWS = [(target, row) for row in (*TORCH, *MEGATRON) for target in row.targets]


@pytest.mark.parametrize(("target", "row"), ROWS, ids=[target for target, _ in ROWS])
def test_each_row_took(target: str, row: Replacement) -> None:
    stand_in = row.by.value if isinstance(row.by, Constant) else find_name(row.by)
    assert find_name(target) is stand_in
    assert row.why


def test_no_name_is_replaced_twice() -> None:
    targets = [target for target, _ in ROWS]
    assert len(set(targets)) == len(targets)


def test_a_second_install_does_nothing() -> None:
    cpu.install()
    assert len(torch.overrides._get_current_function_mode_stack()) == 1


def test_a_visible_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(NodeError, match="hint: platform=hopper"):
        cpu.check_no_gpu()


def test_megatron_must_not_be_imported_before() -> None:
    with pytest.raises(NodeError, match=r"megatron\.core is already imported"):
        import_megatron()


@pytest.mark.parametrize("target", ["torch.cuda.no_such_name", "megatron.core.no_such_module.name"])
def test_a_name_that_upstream_lost_is_an_error(target: str) -> None:
    row = Replacement(targets=(target,), by=Constant(None), why="to see the error")
    with pytest.raises(NodeError, match="no_such_"):
        apply_replacements([row])


@pytest.mark.parametrize("name", HIDDEN)
def test_hidden_packages_cannot_be_imported(name: str) -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(name)


def test_megatron_core_believes_that_transformer_engine_is_absent() -> None:
    from megatron.core.extensions.transformer_engine import HAVE_TE

    assert not HAVE_TE


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(2, device="cuda"),
        lambda: torch.tensor([1.0], device=torch.device("cuda", 0)),
        lambda: torch.zeros(2, device=torch.cuda.current_device()),
        lambda: torch.empty(2, pin_memory=True),
        lambda: torch.zeros(2).cuda(),
        lambda: torch.zeros(2).pin_memory(),
        lambda: torch.zeros(2).to("cuda:0"),
        lambda: torch.zeros(2).to(device="cuda", dtype=torch.bfloat16),
        lambda: torch.zeros(2).new_zeros(3, device="cuda"),
        lambda: torch.nn.Linear(2, 2).cuda().weight,
        lambda: torch.nn.Linear(2, 2).to("cuda", torch.bfloat16).weight,
        lambda: torch.randn(2, generator=torch.Generator(torch.cuda.current_device())),
    ],
)
def test_what_is_asked_onto_the_gpu_lands_on_the_cpu(make: Callable[[], torch.Tensor]) -> None:
    assert make().device.type == "cpu"


def test_the_rng_tracker_switches_states() -> None:
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker

    tracker = CudaRNGStatesTracker()
    tracker.add("experts", 1)
    tracker.add("data", 2)
    torch.manual_seed(0)
    outside = torch.rand(2)
    torch.manual_seed(0)
    with tracker.fork("experts"):
        first = torch.rand(3)
    with tracker.fork("data"):
        other = torch.rand(3)
    with tracker.fork("experts"):
        second = torch.rand(3)
    assert torch.equal(torch.rand(2), outside), "a fork must not move the state outside"
    torch.manual_seed(1)
    assert torch.equal(torch.cat([first, second]), torch.rand(6))
    assert not torch.equal(first, other)


def test_events_measure_time_and_streams_are_done() -> None:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda.current_stream().wait_stream(torch.cuda.Stream())
    end.record()
    assert 0 <= start.elapsed_time(end) < 1000

"""What is measured on CUDA beside times: bytes within kernels, and what is on the device anyway. On stand-ins."""

from __future__ import annotations

import operator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import fx, nn

import memsched as ms
import memsched.torch
from memsched.torch.compiled import copies, held, private, times
from memsched.torch.compiled.groups import plans
from memsched.torch.compiled.sizes import Sizes
from memsched.torch.optimizer_state import state_bytes
from pytorch.fake_cuda import FakeCuda

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
WITHIN = 1 << 20


def layers() -> nn.Module:
    return nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(4)))


@pytest.fixture
def hungry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums need a MiB while they run, as some of CUDA's do."""
    tried = times._time

    def timed(node: fx.Node, sizes: Sizes) -> Any:
        return tried(node, sizes)._replace(workspace=WITHIN * ("sum" in str(node.target)))

    monkeypatch.setattr(times, "_time", timed)
    monkeypatch.setattr(times, "_measured", {})


@pytest.mark.usefixtures("hungry")
def test_bytes_within_kernels_are_planned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model, x = layers(), torch.randn(64, 32)
    modelled = memsched.torch.plan(model, (x,), budget="100%", device="a100")
    plan = memsched.torch.plan(model, (x,), budget="100%")
    assert plan.result.peak_memory > modelled.result.peak_memory + WITHIN // 2
    assert plan.result.schedule.budget == plan.result.peak_memory == ms.peak_memory(plan.graph)
    needs = {op["kind"]: op["choices"][0]["workspace"] for op in plan.graph.ops}
    assert needs["sum"] >= WITHIN > needs["tanh"]
    with pytest.raises(ms.InfeasibleError) as error:
        memsched.torch.plan(model, (x,), budget=WITHIN)
    assert error.value.min_memory > WITHIN
    monkeypatch.setenv("MEMSCHED_CACHE", str(tmp_path))
    peaks = set()
    for _ in range(2):  # the second follows the plan that is kept
        torch._dynamo.reset()
        torch.compile(model, backend="memsched", options={"budget": "100%", "reserve": 3})(x).sum().backward()
        peaks.add(plans()[-1].result.peak_memory)
        model.zero_grad()
    assert len(peaks) == 1
    assert len(list(tmp_path.iterdir())) == 1
    assert min(peaks) > modelled.result.peak_memory + WITHIN // 2


@pytest.mark.usefixtures("hungry")
def test_chains_have_them_too() -> None:
    model, x = layers(), torch.randn(64, 32)
    known = memsched.torch.profile(model, (x,))
    modelled = memsched.torch.profile(model, (x,), device="a100")
    assert all(known.backward_overhead >= WITHIN - x.nbytes)  # what the sum reads is freed after it
    assert all(modelled.backward_overhead <= x.nbytes)


@pytest.mark.parametrize(("issued", "expected"), [(0.5, 1.0), (3.0, 3.0)])
def test_whoever_takes_longer_gives_the_times(monkeypatch: pytest.MonkeyPatch, issued: float, expected: float) -> None:
    """The device runs what the host issues: of both the slower one counts, for all operations."""
    untried = times._Tried(0.25, 0.25)  # nobody knows how long the host takes

    def tried(node: fx.Node, sizes: Sizes) -> Any:
        return untried if "sum" in str(node.target) else times._Tried(1.0, 1.0, issued=issued)

    monkeypatch.setattr(times, "_tried", tried)
    plan = memsched.torch.plan(layers(), (torch.randn(4, 32),), budget="100%")
    assert {op["choices"][0]["time"] for op in plan.graph.ops if op["kind"] in ("tanh", "mm")} == {expected}
    assert {op["choices"][0]["time"] for op in plan.graph.ops if op["kind"] == "sum"} == {0.25}


def test_an_operation_waits_until_the_host_is_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what it allocates within is the peak beside what it leaves."""
    cuda, issued = FakeCuda(), []
    cuda.install(monkeypatch)
    monkeypatch.setattr(private, "wait_on_cuda", lambda cycles: issued.append("wait"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 1000)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 400)
    event = SimpleNamespace(
        record=lambda: issued.append("mark"), elapsed_time=lambda other: 5.0, synchronize=lambda: None
    )
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: event)
    found = times._time_on_cuda(lambda: issued.append("run"), (), {}, CUDA)
    assert issued == ["run", "wait", *["mark", "run", "mark"] * times._REPEATS]
    assert found.seconds == 0.005
    assert found.workspace == 600


def batch_norm() -> tuple[fx.Node, list[Any]]:
    """The backward of a batch normalisation whose last argument is what the forward leaves for it."""
    graph, aten = fx.Graph(), torch.ops.aten
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(4, 3, 5, 5)
    one = graph.placeholder("one")
    one.meta["val"] = torch.empty(3)
    forward = graph.call_function(aten._batch_norm_with_update.default, (x, one, one, one, one, 0.1, 1e-5))
    forward.meta["val"] = forward.target(*(torch.ones(4, 3, 5, 5), *(torch.ones(3) for _ in range(4)), 0.1, 1e-5))
    reserve = graph.call_function(operator.getitem, (forward, 3))
    reserve.meta["val"] = forward.meta["val"][3]
    rest = (x, x, one, one, one, one, one, True, 1e-5, [True, True, True], reserve)
    backward = graph.call_function(aten.batch_norm_backward.default, rest)
    backward.meta["val"] = (torch.empty(4, 3, 5, 5), torch.empty(3), torch.empty(3))
    return backward, [forward, reserve]


def test_what_a_kernel_trusts_is_made_by_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was never run, but taken for a pass at 10 GB/s: on a GPU a hundred times what that takes."""
    backward, (_, reserve) = batch_norm()
    assert times._trusted(backward) == [reserve]
    assert times._can_be_tried(backward)
    sizes: Any = SimpleNamespace(number=int)
    made = times._part_of(reserve, sizes)
    assert made.shape == reserve.meta["val"].shape
    assert times._time(backward, sizes).seconds < 0.1
    given = fx.Graph().placeholder("given")
    backward.args = (*backward.args[:-1], given)
    assert not times._can_be_tried(backward)


def test_a_value_that_is_on_the_host_comes_back_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA's kernels of attention leave the seeds of their dropout on the host, though PyTorch tells otherwise."""
    FakeCuda().install(monkeypatch)
    monkeypatch.setattr(copies, "_TRAFFIC", dict(copies._TRAFFIC))
    seed = torch.tensor(2**63 - 1)
    host = copies.offload(seed)
    copies.gone(seed, host, True)
    back = copies.arrived(copies.prefetch(host, CUDA), host)
    assert back.device == CPU
    assert back.item() == 2**63 - 1
    with pytest.raises(ms.MemschedError, match="is not the one that comes back"):
        copies.prefetch(host.clone(), CUDA)


def test_what_an_optimiser_has_is_no_memory_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    model = layers()
    adam = torch.optim.AdamW(model.parameters())
    assert state_bytes(adam, CPU) == 0
    model(torch.randn(4, 32)).sum().backward()
    adam.step()
    weights = sum(one.nbytes for one in model.parameters())
    assert state_bytes(adam, CPU) == 2 * weights + 4 * 8  # two moments, and a count for each of eight parameters
    assert state_bytes(adam, CUDA) == 0
    assert state_bytes(1000, CPU) == 0
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 5000)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 6000)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (90_000, 100_000))
    assert held.others_on(CUDA, 1500) == 3500 + 4000
    assert held.others_on(CUDA, 9999) == 4000

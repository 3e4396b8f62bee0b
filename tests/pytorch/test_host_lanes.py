"""What the host computes beside a GPU: on a stand-in for torch.cuda that finds races, and with threads."""

from __future__ import annotations

import copy
import ctypes
import gc
import random
import threading
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from updating import cnn, loss, mlp, plain_step, planned, same

from memsched.errors import MemschedError
from memsched.torch.compiled import copies, unit
from memsched.torch.compiled.copies import Traffic
from memsched.torch.lanes import CudaLanes, EmulatedLanes, as_bytes
from pytorch.fake_cuda import FakeCuda, Worker

CPU = torch.device("cpu")
WHEN: dict[str, Callable[[], bool]] = {
    "early": lambda: True,
    "late": lambda: False,
    "at any time": lambda: random.random() < 0.5,
}


@pytest.fixture(params=WHEN)
def cuda(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FakeCuda, Worker]]:
    fake = FakeCuda()
    fake.install(monkeypatch)
    random.seed(0)
    worker = fake.worker(WHEN[request.param])
    before = copies.traffic_on(CPU).lanes
    lanes = CudaLanes(CPU)
    monkeypatch.setattr(lanes, "_host", worker)
    monkeypatch.setattr(lanes, "_flag", worker.flag)
    copies.use(CPU, lanes)
    torch._dynamo.reset()
    yield fake, worker
    copies.use(CPU, before)
    torch._dynamo.reset()
    gc.collect()


def trained(
    cuda: tuple[FakeCuda, Worker], monkeypatch: pytest.MonkeyPatch, make: Callable[[], nn.Module] = mlp, **more: Any
) -> None:
    """Train on streams that are watched from the second step on, and compare the bits."""
    fake, worker = cuda
    model = make()
    x = torch.randn(4, 24) if make is mlp else torch.randn(2, 3, 8, 8)
    other = copy.deepcopy(model)
    optimizer, plain = (torch.optim.AdamW(one.parameters(), lr=0.01) for one in (model, other))
    plan = planned(model, x, optimizer, update_on_host="1 TB/s", **more)
    for step in range(4):
        torch.manual_seed(step)
        found = plan.step(x)
        torch.manual_seed(step)
        assert torch.equal(found, plain_step(other, x, plain))
        same(model, other, optimizer, plain)
        monkeypatch.setattr(unit, "_METERS", [fake])
    assert plan._updates is not None
    assert worker.done == 4 * len(plan._updates.hosted) > 0
    plan.bring_back()


@pytest.mark.parametrize(("make", "more"), [(mlp, {}), (mlp, {"budget": "40%", "link": "1GB/s"}), (cnn, {})])
def test_updates_on_the_host_have_no_race(
    make: Callable[[], nn.Module], more: dict[str, Any], cuda: tuple[FakeCuda, Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(cuda, monkeypatch, make, **more)
    assert cuda[0].races == []
    assert {name for name, _, _ in cuda[0].log} == {"compute", "stream 1", "stream 2", "host"}


@pytest.mark.parametrize("more", [{}, {"max_norm": 0.01}, pytest.param({"budget": "30%"}, marks=pytest.mark.slow)])
def test_gradients_that_are_added_up_on_the_host_have_no_race(
    more: dict[str, Any], cuda: tuple[FakeCuda, Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    added_up(cuda, monkeypatch, **more)
    assert cuda[0].races == []


def added_up(cuda: tuple[FakeCuda, Worker], monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
    """Train with micro-batches on streams that are watched from the second step on, and compare the bits."""
    fake, worker = cuda
    model, x = mlp(), torch.randn(4, 24)
    other = copy.deepcopy(model)
    optimizer, plain = (torch.optim.AdamW(one.parameters(), lr=0.01) for one in (model, other))
    plan = planned(model, x, optimizer, update_on_host="1 TB/s", accumulate=True, **more)
    for step in range(4):
        for part in range(1 + step):
            (plan.accumulate if part < step else plan.step)(x)
            loss(other(x)).backward()
        if "max_norm" in more:
            nn.utils.clip_grad_norm_(other.parameters(), more["max_norm"])
        plain.step()
        plain.zero_grad()
        same(model, other, optimizer, plain)
        monkeypatch.setattr(unit, "_METERS", [fake])
    assert plan._updates is not None
    assert plan.waiting is not None
    assert plan.waiting._updates is not None
    assert worker.done >= 6 * len(plan.waiting._updates.hosted) + 4 * len(plan._updates.hosted) > 0
    plan.bring_back()


_compute = Traffic.compute


def without_reads(self: Traffic, work: Any, reads: Any, changes: Any) -> None:
    _compute(self, work, [], changes)


def without_fetches(self: Traffic, work: Any, reads: Any, changes: Any) -> None:
    known = {one: one.read for one in self._hosts.values()}
    for one in known:
        one.read = None
    _compute(self, work, reads, changes)
    for one, read in known.items():
        one.read = read


def without_telling(self: Traffic, work: Any, reads: Any, changes: Any) -> None:
    known = {one: one.written for one in self._hosts.values()}
    _compute(self, work, reads, changes)
    for one, written in known.items():
        one.written = written


@pytest.mark.parametrize(
    ("broken", "adds"),
    [(without_reads, False), (without_fetches, False), (without_telling, False), (without_reads, True)],
)
def test_a_wait_that_is_missing_is_a_race(
    broken: Any, adds: bool, cuda: tuple[FakeCuda, Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Traffic, "compute", broken)
    try:
        (added_up if adds else trained)(cuda, monkeypatch)
    except AssertionError:  # the bits differ, too
        return
    assert cuda[0].races


# With threads: the stand-in does what CUDA does at once, and the host waits for the test.


@pytest.fixture
def threaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    fake = FakeCuda()
    fake.install(monkeypatch)
    yield fake
    torch._dynamo.reset()
    gc.collect()


def memory(value: int) -> torch.Tensor:
    return torch.full((64,), value, dtype=torch.uint8)


def test_a_copy_that_waits_for_the_host_holds_up_those_after_it_and_nobody_else(threaded: FakeCuda) -> None:
    lanes = CudaLanes(CPU)
    gate = threading.Event()
    host, first, second, out = memory(1), memory(0), memory(0), memory(0)

    def work() -> None:
        gate.wait()
        host.fill_(7)

    done = lanes.compute(work, [lanes.now()])
    ends = [lanes.copy("in", one.untyped_storage(), host, [done]) for one in (first, second)]
    after = lanes.copy("in", memory(0).untyped_storage(), host, [lanes.now()])
    lanes.wait(lanes.copy("out", memory(5).untyped_storage(), out, [lanes.now()]))
    assert out[0] == 5  # copies out go on
    assert first[0] == 0
    assert not any(one.issued.is_set() for one in (*ends, after))
    gate.set()
    for end, one in zip(ends, (first, second), strict=True):
        lanes.wait(end)
        assert one[0] == 7
    lanes.wait(after)
    names = [name for name, verb, _ in threaded.log if verb == "wait"]
    assert names.count("compute") == 4
    lanes.finish()


def test_a_second_computation_waits_for_the_copy_that_reads_the_first(threaded: FakeCuda) -> None:
    lanes = CudaLanes(CPU)
    gate = threading.Event()
    host, device = memory(1), memory(0)

    def write(value: int) -> None:
        gate.wait()
        host.fill_(value)

    first = lanes.compute(lambda: write(2), [])
    fetched = lanes.copy("in", device.untyped_storage(), host, [first])
    second = lanes.compute(lambda: write(3), [fetched])
    assert not second.over.is_set()
    gate.set()
    lanes.finish("host")
    assert (int(device[0]), int(host[0])) == (2, 3)
    lanes.finish("in")


def nothing(_: object) -> None:
    """What work returns."""


class BrokenError(Exception):
    """Of a driver."""


class Broken:
    """An event that nobody can wait for."""

    def synchronize(self) -> None:
        raise BrokenError


def test_an_error_of_the_driver_is_told_and_holds_up_nobody(threaded: FakeCuda) -> None:
    lanes = CudaLanes(CPU)
    done = lanes.compute(lambda: None, [Broken()])
    lanes.wait(lanes.copy("in", memory(0).untyped_storage(), memory(1), [done]))
    with pytest.raises(MemschedError, match="has failed"):
        lanes.finish()
    lanes.finish()
    gate = threading.Event()
    done = lanes.compute(lambda: nothing(gate.wait()), [])
    end = lanes.copy("in", memory(0).untyped_storage(), memory(1)[:32], [done])  # of other sizes
    gate.set()
    with pytest.raises(MemschedError, match="has failed"):
        lanes.wait(end)
    with pytest.raises(MemschedError, match="has failed"):
        lanes.finish()


def test_what_is_freed_after_it_came_late_is_gone(threaded: FakeCuda) -> None:
    """The thread that had issued it kept it until the next copy."""
    traffic, gate = Traffic(CudaLanes(CPU)), threading.Event()
    parameter, gradient, other = (traffic.offload(torch.ones(8)) for _ in range(3))
    traffic.compute(lambda: nothing(gate.wait()), [gradient], [parameter])
    values = [(one, traffic.prefetch(one)) for one in (parameter, other)]
    gate.set()
    arrived = [traffic.arrived(value, host) for host, value in values]
    del values
    freed: list[int] = []
    for one in arrived:
        weakref.finalize(one.untyped_storage(), freed.append, 1)
    del one, arrived
    assert len(freed) == 2


@pytest.mark.parametrize("lanes", [EmulatedLanes, lambda: CudaLanes(CPU)])
def test_garbage_that_is_collected_beside_a_step_holds_up_nobody(lanes: Any, threaded: FakeCuda) -> None:
    """Python tells of dropped tensors in the thread that collects, for which whoever has the lock may wait."""
    traffic = Traffic(lanes())
    parameter, gradient = (traffic.offload(torch.ones(8)) for _ in range(2))
    cycle = SimpleNamespace(host=traffic.offload(torch.ones(16)))
    cycle.itself = cycle
    gc.disable()
    try:
        del cycle
        traffic.compute(lambda: nothing(gc.collect()), [gradient], [parameter])
        traffic.finish("host")
    finally:
        gc.enable()
    traffic.finish("in")
    assert len(traffic._hosts) == 2


class Behind:
    """A GPU that is behind: copies to it are done when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[torch.UntypedStorage, torch.Tensor]] = []

    def begin(self) -> None:
        pass

    def now(self) -> int:
        return 0

    def allocate(self, nbytes: int) -> torch.UntypedStorage:
        return torch.zeros(nbytes, dtype=torch.uint8).untyped_storage()

    host_memory = staticmethod(lambda nbytes: torch.zeros(nbytes, dtype=torch.uint8))

    def copy(self, way: str, device: torch.UntypedStorage, host: torch.Tensor, after: Any) -> int:
        if way == "out":
            host.copy_(as_bytes(device))
        else:
            memory = (ctypes.c_uint8 * host.numel()).from_address(host.data_ptr())  # which is no tensor's
            self.asked.append((device, torch.frombuffer(memory, dtype=torch.uint8)))
        return 0

    def wait(self, event: Any) -> None:
        """The device waits, and the host goes on."""

    def finish(self, lane: Any = None) -> None:
        for device, host in self.asked:
            as_bytes(device).copy_(host)
        self.asked.clear()


def test_memory_that_a_copy_reads_is_not_written() -> None:
    """States that the host made took the memory of a parameter that was still on its way."""
    lanes: Any = Behind()
    traffic = Traffic(lanes)
    traffic.most = 1000
    host = traffic.offload(torch.ones(8))
    value = traffic.arrived(traffic.prefetch(host), host)
    del host
    made = traffic.adopt(torch.full((8,), 9.0))
    lanes.finish()
    assert value.tolist() == [1.0] * 8
    assert made.view(torch.float32).tolist() == [9.0] * 8


def test_steps_with_a_thread_beside_them(threaded: FakeCuda) -> None:
    """Many of them: whoever waits for whom, nobody waits for ever, and the bits are right."""
    model, x = mlp(6), torch.randn(4, 24)
    other = copy.deepcopy(model)
    optimizer, plain = (torch.optim.AdamW(one.parameters(), lr=0.01) for one in (model, other))
    with copies.using(CPU, CudaLanes(CPU)):
        for budget in ("0%", "40%"):
            plan = planned(model, x, optimizer, budget, update_on_host="1 TB/s")
            for _ in range(30):
                assert torch.equal(plan.step(x), plain_step(other, x, plain))
            same(model, other, optimizer, plain)
            plan.bring_back()

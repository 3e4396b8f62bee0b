"""What the host computes beside a GPU: on a stand-in for torch.cuda that finds races, and with threads."""

from __future__ import annotations

import copy
import gc
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from updating import cnn, mlp, plain_step, planned, same

from memsched.errors import MemschedError
from memsched.torch.compiled import copies, unit
from memsched.torch.compiled.copies import Traffic
from memsched.torch.lanes import CudaLanes
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
    assert worker.done == 4 * len(plan._updates.hosted) > 0  # type: ignore[union-attr]
    plan.bring_back()


@pytest.mark.parametrize(("make", "more"), [(mlp, {}), (mlp, {"budget": "40%", "link": "1GB/s"}), (cnn, {})])
def test_updates_on_the_host_have_no_race(
    make: Callable[[], nn.Module], more: dict[str, Any], cuda: tuple[FakeCuda, Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(cuda, monkeypatch, make, **more)
    assert cuda[0].races == []
    assert {name for name, _, _ in cuda[0].log} == {"compute", "stream 1", "stream 2", "host"}


_compute = Traffic.compute


def without_reads(self: Traffic, work: Any, reads: Any, changes: Any) -> None:
    _compute(self, work, [], changes)


def without_fetches(self: Traffic, work: Any, reads: Any, changes: Any) -> None:
    known, self._reads = self._reads, {}
    _compute(self, work, reads, changes)
    self._reads = known


def without_telling(self: Traffic, work: Any, reads: Any, changes: Any) -> None:
    known = dict(self._events)
    _compute(self, work, reads, changes)
    self._events = known


@pytest.mark.parametrize("broken", [without_reads, without_fetches, without_telling])
def test_a_wait_that_is_missing_is_a_race(
    broken: Any, cuda: tuple[FakeCuda, Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Traffic, "compute", broken)
    try:
        trained(cuda, monkeypatch)
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


class BrokenError(Exception):
    """Of a driver."""


class Broken:
    """An event that nobody can wait for."""

    def synchronize(self) -> None:
        raise BrokenError


def test_an_error_of_the_driver_is_told_and_holds_up_nobody(threaded: FakeCuda) -> None:
    lanes = CudaLanes(CPU)
    done = lanes.compute(lambda: None, [Broken()])
    end = lanes.copy("in", memory(0).untyped_storage(), memory(1), [done])
    lanes.wait(done)
    with pytest.raises(MemschedError, match="has failed"):
        lanes.wait(end)
    lanes.finish()
    gate = threading.Event()
    done = lanes.compute(gate.wait, [])
    end = lanes.copy("in", memory(0).untyped_storage(), memory(1)[:32], [done])  # of other sizes
    gate.set()
    with pytest.raises(MemschedError, match="has failed"):
        lanes.wait(end)
    lanes.finish()


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

"""The lanes of CUDA on a stand-in for torch.cuda: who waits for whom. Whole steps are in test_compiled_cuda."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from memsched.errors import MemschedError
from memsched.torch.compiled import copies
from memsched.torch.lanes import CudaLanes, Direction, EmulatedLanes, pinned
from pytorch.fake_cuda import FakeCuda

CPU = torch.device("cpu")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    fake.install(monkeypatch)
    return fake


def bytes_of(value: int) -> Any:
    return torch.full((64,), value, dtype=torch.uint8)


@pytest.mark.parametrize("way", ["out", "in"])
def test_a_copy_waits_and_is_recorded_on_its_own_stream(cuda: FakeCuda, way: Direction) -> None:
    lanes = CudaLanes(CPU)
    device, host = bytes_of(1), bytes_of(2)
    first, second = lanes.now(), lanes.now()
    cuda.log.clear()
    with cuda:
        end = lanes.copy(way, device.untyped_storage(), host, [first, second])
    name = {"out": "stream 1", "in": "stream 2"}[way]
    assert cuda.log == [
        (name, "wait", first),
        (name, "wait", second),
        (name, "copy_", None),
        (name, "record", end),
    ]
    assert cuda.current.name == "compute"
    assert (host if way == "out" else device)[0] == (1 if way == "out" else 2)


def test_what_is_not_known_of_gpus_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda")
    monkeypatch.setitem(copies._TRAFFIC, device, copies.Traffic(EmulatedLanes()))
    copies._tell_of_bits.cache_clear()
    copies.expect(device, 0)
    copies.expect(CPU, 8)
    with pytest.warns(UserWarning, match="a plan offloads on a GPU, .*verify"):
        copies.expect(device, 8)
    copies.expect(device, 9)
    assert copies.traffic_on(device).most == 9


def test_now_and_wait_are_on_the_compute_stream(cuda: FakeCuda) -> None:
    lanes = CudaLanes(CPU)
    event = lanes.now()
    lanes.wait(event)
    assert cuda.log == [("compute", "record", event), ("compute", "wait", event)]


def test_a_step_stays_on_the_stream_that_began_it(cuda: FakeCuda) -> None:
    """Whichever stream is current in the thread that carries out the rest."""
    lanes = CudaLanes(CPU)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        lanes.begin()
    lanes.now()
    assert cuda.log[-1][:2] == (side.name, "record")


def test_both_ways_run_beside_each_other(cuda: FakeCuda) -> None:
    """Nothing orders a copy out and a copy in but the events that they are given."""
    lanes = CudaLanes(CPU)
    device, host = bytes_of(1), bytes_of(2)
    with cuda:
        lanes.copy("out", device.untyped_storage(), host, [])
        lanes.copy("in", bytes_of(0).untyped_storage(), host, [lanes.now()])
    assert cuda.races


# The stand-in itself: it must see what a GPU would punish.


def test_a_result_that_is_not_awaited_is_a_race(cuda: FakeCuda) -> None:
    lanes = CudaLanes(CPU)
    host = bytes_of(3)
    with cuda:
        storage = lanes.allocate(64)
        event = lanes.copy("in", storage, host, [lanes.now()])
        view = torch.empty(0, dtype=torch.uint8).set_(storage)
        view.add(1)
        assert len(cuda.races) == 1
        lanes.wait(event)
        view.add(1)
    assert len(cuda.races) == 1


def test_memory_that_is_given_back_too_early_is_a_race(cuda: FakeCuda) -> None:
    lanes = CudaLanes(CPU)
    with cuda:
        for waits in (True, False):
            value = bytes_of(1).add(1)
            event = lanes.copy("out", value.untyped_storage(), bytes_of(0), [lanes.now()])
            if waits:
                lanes.wait(event)
            del value
    assert len([race for race in cuda.races if "given back" in race]) >= 1


def test_what_the_host_has_seen_needs_no_wait(cuda: FakeCuda) -> None:
    lanes = CudaLanes(CPU)
    cuda.reached = lambda: True
    with cuda:
        value, host = bytes_of(1).add(1), bytes_of(0)
        event = lanes.copy("out", value.untyped_storage(), host, [lanes.now()])
        assert event.query()
        del value
        host.add(1)
    assert cuda.races == []


# Pinned memory.


def test_pinned_memory_is_registered_and_given_back(cuda: FakeCuda) -> None:
    host = pinned(10_001)
    address = host.data_ptr()
    assert address % 4096 == 0
    assert cuda.registered == {address: 10_001}
    part = host[5000:]
    del host
    assert cuda.registered
    del part
    gc.collect()
    assert cuda.registered == {}


def test_no_bytes_are_not_registered(cuda: FakeCuda) -> None:
    assert pinned(0).nbytes == 0
    assert cuda.registered == {}


def test_a_driver_that_refuses_is_an_error(cuda: FakeCuda) -> None:
    cuda.refuse = 2
    with pytest.raises(MemschedError, match=r"4096 bytes of host memory cannot be pinned.*host_memory"):
        pinned(4096)

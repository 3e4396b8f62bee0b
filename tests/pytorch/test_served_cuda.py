"""The allocator for CUDA devices, with a stand-in for the driver: a device of few bytes, and streams."""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import memsched.torch
from memsched.errors import InvalidInputError, MemschedError
from memsched.torch.arena import cuda, native
from memsched.torch.arena.native import PASS, CudaNative, Requests

pytestmark = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "c++")) is None, reason="the allocator needs a C++ compiler"
)

MIB = 2**20


@pytest.fixture(autouse=True)
def _fresh() -> None:
    """Nothing is compiled."""


class Driver:
    """Addresses of a device without memory behind them. A range that overlaps another is an error."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.blocks, self.waits = capacity, dict[int, int](), 0
        self._next = 4096
        kind = ctypes.CFUNCTYPE
        self.runtime = SimpleNamespace(
            cudaMalloc=kind(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t)(self._allocate),
            cudaFree=kind(ctypes.c_int, ctypes.c_void_p)(self._free),
            cudaDeviceSynchronize=kind(ctypes.c_int)(self._wait),
        )

    @property
    def used(self) -> int:
        return sum(self.blocks.values())

    def _allocate(self, where: Any, nbytes: int) -> int:
        if self.used + nbytes > self.capacity:
            return 2
        where[0] = self._next
        self.blocks[self._next] = nbytes
        self._next += -(-nbytes // 512) * 512 + 512
        return 0

    def _free(self, pointer: int) -> int:
        del self.blocks[pointer]
        return 0

    def _wait(self) -> int:
        self.waits += 1
        return 0


class Device:
    """What PyTorch does with the allocator, each call checked by a list of what is alive."""

    def __init__(self, tmp_path: Path, capacity: int) -> None:
        copy = tmp_path / "own.so"  # with a state of its own
        shutil.copy(native.cuda().path, copy)
        self.native, self.driver = CudaNative(copy), Driver(capacity)
        self.native.use(self.driver.runtime)
        self._allocate = self.native.library.arena_cuda_allocate
        self._allocate.restype = ctypes.c_void_p
        self._allocate.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        self._free = self.native.library.arena_cuda_give_back
        self._free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        self.native.library.arena_cuda_record_stream.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        self.alive: dict[int, tuple[int, int]] = {}
        self.last: dict[int, tuple[int, int]] = {}  # address -> its last stream, and how many waits there were then

    def allocate(self, nbytes: int, stream: int = 7) -> int:
        where = int(self._allocate(nbytes, 0, stream))
        assert all(where + nbytes <= low or low + size <= where for low, (size, _) in self.alive.items())
        assert any(low <= where and where + nbytes <= low + size for low, size in self.driver.blocks.items())
        if where in self.last and self.last[where][0] != stream:
            assert self.last[where][1] < self.driver.waits, "what another stream gave back is used without waiting"
        self.alive[where] = nbytes, stream
        return where

    def free(self, where: int) -> None:
        nbytes, stream = self.alive.pop(where)
        self._free(where, nbytes, 0, stream)
        self.last[where] = stream, self.driver.waits

    def number(self, name: str) -> int:
        return int(getattr(self.native.library, f"arena_cuda_{name}")())


def test_blocks_are_kept_for_their_size_and_stream(tmp_path: Path) -> None:
    device = Device(tmp_path, 64 * MIB)
    one = device.allocate(1000)
    device.free(one)
    assert device.allocate(1024) == one  # both are rounded to 1024
    other = device.allocate(1000, stream=8)
    device.free(other)
    assert device.allocate(1000) != other
    large = device.allocate(3 * MIB)
    assert device.driver.blocks[large] == 4 * MIB
    assert device.number("allocated") == 1024 + 1000 + 3 * MIB
    assert device.number("peak") == device.number("allocated")
    assert device.number("reserved") == device.driver.used
    device.free(large)
    assert device.number("peak") > device.number("allocated")
    device.native.library.arena_cuda_reset_peak()
    assert device.number("peak") == device.number("allocated")


def test_free_blocks_go_back_before_it_fails(tmp_path: Path) -> None:
    device = Device(tmp_path, 8 * MIB)
    small = [device.allocate(2 * MIB) for _ in range(4)]
    for one in small[1:]:
        device.free(one)
    device.allocate(6 * MIB)
    assert device.driver.waits == 1
    assert device.number("reserved") == device.driver.used == 8 * MIB


def test_no_memory_is_an_error(tmp_path: Path) -> None:
    """Of C++, as PyTorch expects it: a process of its own ends by it where nobody catches it."""
    native.cuda()  # compiled
    code = """
        import ctypes
        from pathlib import Path
        from pytorch.test_served_cuda import Device
        Device(Path({folder!r}), 100).allocate(1000)
    """
    lines = "\n".join(line.strip() for line in code.format(folder=str(tmp_path)).splitlines())
    where = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", lines], env=where, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "CUDA out of memory" in done.stderr


def test_a_step_is_served_on_its_stream(tmp_path: Path) -> None:
    device = Device(tmp_path, 64 * MIB)
    base = device.native.make(4096)
    assert device.number("reserved") == 4096
    requests = Requests([(1000, 0), (500, 1024), (700, PASS), (1000, 0)])
    device.native.begin(0, 7)
    device.native.expect(base, requests)
    first, elsewhere, second = device.allocate(1000), device.allocate(500, stream=8), device.allocate(500)
    assert [first - base, second - base] == [0, 1024]
    assert not base <= elsewhere < base + 4096
    assert not base <= device.allocate(700) < base + 4096
    blocked = device.allocate(1000)  # its place is taken
    assert not base <= blocked < base + 4096
    counts = device.native.counts()
    assert (counts.planned, counts.let_pass, counts.blocked) == ((2, 1500), (1, 700), (1, 1000))
    device.native.end()
    assert not base <= device.allocate(1000) < base + 4096
    device.native.free(base)
    assert base in device.driver.blocks  # two tensors lie there
    device.free(first)
    device.free(second)
    assert base not in device.driver.blocks


def test_what_another_stream_uses_waits_for_it(tmp_path: Path) -> None:
    device = Device(tmp_path, 64 * MIB)
    one = device.allocate(1000)
    device.native.library.arena_cuda_record_stream(one, 8)
    device.free(one)
    assert device.driver.waits == 1
    device.free(device.allocate(1000))
    assert device.driver.waits == 1


@pytest.mark.parametrize("seed", range(20))
def test_random_requests(tmp_path: Path, seed: int) -> None:
    """Of several streams, with steps that come as planned and otherwise, on a device that is often full."""
    numbers = random.Random(seed)
    device = Device(tmp_path, 24 * MIB)
    base, bytes_of_arena = 0, 0
    for _ in range(30):
        if numbers.random() < 0.3:
            if base:
                device.native.free(base)
            bytes_of_arena = numbers.randrange(1, 16) * 512
            base = device.native.make(bytes_of_arena)
        places = range(0, max(1, bytes_of_arena - 3000), 512)
        pairs = [(numbers.randrange(1, 3000), numbers.choice(places)) for _ in range(12)]
        requests = Requests(pairs)
        device.native.begin(0, 7)
        device.native.expect(base, requests)
        for nbytes, _ in pairs:
            if numbers.random() < 0.9:
                device.allocate(nbytes)
            if numbers.random() < 0.2:
                device.allocate(numbers.randrange(1, 2 * MIB), stream=numbers.choice([7, 8]))
            while device.alive and (numbers.random() < 0.5 or device.driver.used > 16 * MIB):
                device.free(numbers.choice(list(device.alive)))
        device.native.end()
    for one in list(device.alive):
        device.free(one)
    assert device.number("allocated") == 0
    if base:
        device.native.free(base)
    assert device.number("reserved") == device.driver.used


class TakenOver:
    """What PyTorch has for pluggable allocators, in names."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, initialized: bool = False) -> None:
        self.changed: list[Any] = []
        self.recorded: list[int] = []
        cuda.taken_over.cache_clear()
        monkeypatch.setattr(cuda, "_TAKEN", [])
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: initialized)
        monkeypatch.setattr(torch.cuda.memory, "CUDAPluggableAllocator", self._made)
        monkeypatch.setattr(torch.cuda.memory, "change_current_allocator", self.changed.append)
        monkeypatch.setattr(
            torch.cuda, "current_stream", lambda: SimpleNamespace(device=SimpleNamespace(index=0), cuda_stream=7)
        )

    def _made(self, path: str, allocate: str, free: str) -> Any:
        library = ctypes.CDLL(path)
        assert getattr(library, allocate) is not getattr(library, free)
        return SimpleNamespace(allocator=lambda: SimpleNamespace(set_record_stream_fn=self.recorded.append))


def test_it_takes_the_place_of_the_allocator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a step is recorded, placed and served as on the CPU."""
    device, found = Device(tmp_path, 64 * MIB), TakenOver(monkeypatch)
    monkeypatch.setattr(native, "cuda", lambda: device.native)
    monkeypatch.setattr(cuda, "_runtime", lambda: "")
    monkeypatch.setattr(ctypes, "CDLL", lambda path: ctypes.PyDLL(path) if path else device.driver.runtime)
    arena = memsched.torch.Arena("cuda")
    assert len(found.changed) == len(found.recorded) == 1
    for _ in range(4):
        with arena:
            one, other = device.allocate(5000), device.allocate(3000)
            device.free(one)
            last = device.allocate(4000)
            device.free(other)
            device.free(last)
    assert arena.placement is not None
    assert arena.counts is not None
    assert arena.placement.height == 5120 + 3072
    assert arena.counts.planned == (3, 12000)
    elsewhere = SimpleNamespace(device=SimpleNamespace(index=0), cuda_stream=8)
    with monkeypatch.context() as patched:
        patched.setattr(torch.cuda, "current_stream", lambda: elsewhere)
        with (
            pytest.raises(InvalidInputError, match="serves stream 0x7 of device 0 and is entered on stream 0x8"),
            arena,
        ):
            pass
    where = torch.device("cuda")
    assert (cuda.allocated(where), cuda.reserved(where)) == (0, device.driver.used)
    cuda.reset_peak(where)
    assert cuda.peak(where) == 0
    cuda.taken_over.cache_clear()


def test_it_comes_before_anything_is_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    TakenOver(monkeypatch, initialized=True)
    with pytest.raises(MemschedError, match="PyTorch uses the GPU already"):
        memsched.torch.Arena("cuda")

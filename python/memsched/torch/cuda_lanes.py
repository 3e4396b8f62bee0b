"""Copies between a CUDA device and pinned host memory, on streams of their own."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from memsched.errors import MemschedError
from memsched.torch.lanes import Direction, as_bytes


class _Event:
    """A moment on a CUDA stream: when all that was issued to it so far is done."""

    __slots__ = ("event", "start")

    def __init__(self, stream: torch.cuda.Stream, start: _Event | None = None) -> None:
        self.event = torch.cuda.Event(enable_timing=True)
        self.event.record(stream)
        self.start = start


class CudaLanes:
    """The current stream computes, one stream copies out and one copies in.

    Device buffers are allocated on the compute stream and given back only after that stream waits for the copy's end:
    the caching allocator needs no `record_stream`.
    """

    overlap = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._compute = torch.cuda.current_stream(device)
        self._streams = {"out": torch.cuda.Stream(device), "in": torch.cuda.Stream(device)}

    def begin(self) -> None:
        self._compute = torch.cuda.current_stream(self._device)

    def allocate(self, nbytes: int) -> torch.UntypedStorage:
        return torch.empty(nbytes, dtype=torch.uint8, device=self._device).untyped_storage()

    def give_back(self, storage: torch.UntypedStorage) -> None:
        pass

    def now(self) -> _Event:
        return _Event(self._compute)

    def copy(self, way: Direction, device: torch.UntypedStorage, host: torch.Tensor, after: Sequence[Any]) -> _Event:
        stream = self._streams[way]
        for event in after:
            stream.wait_event(event.event)
        start = _Event(stream)
        with torch.no_grad(), torch.cuda.stream(stream):
            if way == "out":
                host.copy_(as_bytes(device), non_blocking=True)
            else:
                as_bytes(device).copy_(host, non_blocking=True)
        return _Event(stream, start)

    def reached(self, event: _Event) -> bool:
        return bool(event.event.query())

    def wait(self, event: _Event) -> None:
        self._compute.wait_event(event.event)

    def host_memory(self, nbytes: int) -> torch.Tensor:
        return pinned(nbytes)

    def finish(self) -> None:
        torch.cuda.synchronize(self._device)

    def seconds(self, first: _Event, second: _Event) -> float:
        return float(first.event.elapsed_time(second.event)) / 1000


def pinned(nbytes: int) -> torch.Tensor:
    """Page-locked memory of exactly this size, where the driver registers it; PyTorch's own pool may round it up."""
    if nbytes == 0:
        return torch.empty(0, dtype=torch.uint8)
    page = 4096
    memory = np.empty(nbytes + page, dtype=np.uint8)
    start = -memory.ctypes.data % page
    host = torch.from_numpy(memory[start : start + nbytes])
    runtime = torch.cuda.cudart()
    status = runtime.cudaHostRegister(host.data_ptr(), nbytes, 0)
    if int(status) != 0:
        del host, memory
        with contextlib.suppress(RuntimeError, AssertionError):
            torch.zeros(1, device="cuda")  # takes the error from the driver, or the next kernel would find it
        try:
            return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        except RuntimeError as error:
            raise MemschedError(
                f"{nbytes} bytes of host memory cannot be pinned (cudaHostRegister: {status}; {error}); plan with a "
                "smaller host_memory"
            ) from error
    weakref.finalize(memory, _unregister, runtime, host.data_ptr()).atexit = False
    return host


def _unregister(runtime: Any, address: int) -> None:
    torch.cuda.synchronize()  # no copy may be under way
    runtime.cudaHostUnregister(address)

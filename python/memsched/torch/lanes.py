"""How bytes travel between the device and the host beside the computation: CUDA's streams, or their emulation."""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import torch

from memsched.errors import MemschedError

Direction = Literal["out", "in"]


class Lanes(Protocol):
    """A compute stream and two first-in-first-out streams of copies. An event is a moment on one of them."""

    def begin(self) -> None:
        """Called where a step begins: the calling thread's stream computes it, whichever thread issues the rest."""

    def allocate(self, nbytes: int) -> torch.UntypedStorage:
        """Device memory, for the compute stream."""

    def give_back(self, storage: torch.UntypedStorage) -> None:
        """Called before the last reference to a storage is dropped."""

    def now(self) -> Any:
        """The moment when the compute stream has done all that was issued so far."""

    def copy(self, way: Direction, device: torch.UntypedStorage, host: torch.Tensor, after: Sequence[Any]) -> Any:
        """Issue a copy that starts after some events; the event of its end."""

    def wait(self, event: Any) -> None:
        """Let the compute stream wait for an event."""

    def host_memory(self, nbytes: int) -> torch.Tensor:
        """Host memory that copies are fast from and to."""

    def finish(self, way: Direction | None = None) -> None:
        """Let the calling thread wait until all is done, or all copies of one direction."""


def as_bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    """The storage as a tensor of bytes."""
    view = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return view.set_(storage, 0, (storage.nbytes(),), (1,))


@dataclass(slots=True)
class _Copy:
    """A copy that the emulation has been asked for. Once done it is only an event, and holds no memory."""

    way: Direction
    device: torch.UntypedStorage | None
    host: torch.Tensor | None
    after: Sequence[_Copy | None]

    @property
    def done(self) -> bool:
        return self.device is None

    def carry_out(self) -> None:
        if self.device is None or self.host is None:
            return  # a wait was interrupted just after it
        with torch.no_grad():
            if self.way == "out":
                self.host.copy_(as_bytes(self.device))
            else:
                as_bytes(self.device).copy_(self.host)
        self.device, self.host, self.after = None, None, ()


@dataclass(slots=True)
class EmulatedLanes:
    """The CPU plays device and host. Copies happen at the earliest or at the latest legal moment.

    Memory that holds nothing yet, and memory that was given back, is filled with NaN: a missing wait shows in the
    results instead of passing by luck.
    """

    early: Callable[[], bool] = field(default=lambda: True)
    """Asked at each copy: True to copy when it is issued, False to copy when somebody waits for it."""
    poison: bool = True  # fill memory with NaN
    _pending: dict[str, deque[_Copy]] = field(default_factory=lambda: {"out": deque(), "in": deque()})

    def begin(self) -> None:
        pass

    def allocate(self, nbytes: int) -> torch.UntypedStorage:
        storage = torch.empty(nbytes, dtype=torch.uint8, device="cpu").untyped_storage()
        self.give_back(storage)
        return storage

    def give_back(self, storage: torch.UntypedStorage) -> None:
        if self.poison:
            as_bytes(storage).fill_(0xFF)  # NaN in every floating type, -1 in every signed integer

    def now(self) -> None:
        """The compute stream does everything at once."""

    def copy(self, way: Direction, device: torch.UntypedStorage, host: torch.Tensor, after: Sequence[Any]) -> _Copy:
        copy = _Copy(way, device, host, after)
        self._pending[way].append(copy)
        if self.early():
            self.wait(copy)
        return copy

    def wait(self, event: _Copy | None) -> None:
        while event is not None and not event.done:
            first = self._pending[event.way][0]
            for earlier in first.after:
                self.wait(earlier)
            first.carry_out()
            self._pending[event.way].popleft()  # not before: one that is interrupted is carried out later

    def host_memory(self, nbytes: int) -> torch.Tensor:
        host = torch.from_numpy(np.empty(nbytes, dtype=np.uint8))  # no operation, so that no meter counts it
        return host.fill_(0xFF) if self.poison else host

    def finish(self, way: Direction | None = None) -> None:
        for copies in [*self._pending.values()] if way is None else [self._pending[way]]:
            if copies:
                self.wait(copies[-1])


def _moment_on(stream: torch.cuda.Stream) -> torch.cuda.Event:
    """When all that was issued to a stream so far is done."""
    event = torch.cuda.Event()
    event.record(stream)
    return event


class CudaLanes:
    """A CUDA device and pinned host memory: the current stream computes, one stream copies out and one copies in.

    Device buffers are allocated on the compute stream and given back only after that stream waits for the copy's end:
    the caching allocator needs no `record_stream`.
    """

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

    def now(self) -> torch.cuda.Event:
        return _moment_on(self._compute)

    def copy(self, way: Direction, device: torch.UntypedStorage, host: torch.Tensor, after: Sequence[Any]) -> Any:
        stream = self._streams[way]
        for event in after:
            stream.wait_event(event)
        with torch.no_grad(), torch.cuda.stream(stream):
            if way == "out":
                host.copy_(as_bytes(device), non_blocking=True)
            else:
                as_bytes(device).copy_(host, non_blocking=True)
        return _moment_on(stream)

    def wait(self, event: torch.cuda.Event) -> None:
        self._compute.wait_event(event)

    def host_memory(self, nbytes: int) -> torch.Tensor:
        return pinned(nbytes)

    def finish(self, way: Direction | None = None) -> None:
        if way is None:
            torch.cuda.synchronize(self._device)
        else:
            self._streams[way].synchronize()


def pinned(nbytes: int) -> torch.Tensor:
    """Page-locked memory of exactly this size, where the driver registers it; PyTorch's own pool may round it up."""
    if nbytes == 0:
        return torch.empty(0, dtype=torch.uint8, device="cpu")
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
            return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)
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


def lanes_on(device: torch.device) -> Lanes:
    """CUDA's streams, or their emulation as fast as it goes."""
    if device.type == "cuda":
        return CudaLanes(device)
    return EmulatedLanes(poison=False)


def trial_lanes(device: torch.device) -> dict[str, Lanes]:
    """Those on which a plan is tried, by name: emulated copies happen as late or as early as they may."""
    if device.type == "cuda":
        return {"on their streams": lanes_on(device)}
    return {"late": EmulatedLanes(early=lambda: False), "early": EmulatedLanes()}

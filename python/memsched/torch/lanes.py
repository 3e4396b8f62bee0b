"""How bytes travel between the device and the host beside the computation: CUDA's streams, or their emulation."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import torch

from memsched.errors import MemschedError

Direction = Literal["out", "in"]
Lane = Literal["out", "in", "host"]
Work = Callable[[], None]


class Lanes(Protocol):
    """A compute stream, two first-in-first-out streams of copies, and one of what the host computes beside these.

    An event is a moment on one of them.
    """

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

    def compute(self, work: Work, after: Sequence[Any]) -> Any:
        """Let the host do some work after some events; the event of its end. The work raises nothing."""

    def wait(self, event: Any) -> None:
        """Let the compute stream wait for an event."""

    def host_memory(self, nbytes: int) -> torch.Tensor:
        """Host memory that copies are fast from and to."""

    def finish(self, lane: Lane | None = None) -> None:
        """Let the calling thread wait until all is done, or all of one stream."""


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
    after: Sequence[_Asked | None]

    @property
    def done(self) -> bool:
        return self.device is None

    @property
    def lane(self) -> Lane:
        return self.way

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
class _Computation:
    """What the emulation has been asked to compute on the host. A thread of its own does it, as beside a GPU."""

    work: Work | None
    after: Sequence[_Asked | None]
    thread: threading.Thread | None = None
    lane: Lane = "host"

    @property
    def done(self) -> bool:
        return self.work is None

    def carry_out(self) -> None:
        if self.work is None:
            return
        if self.thread is None:
            self.thread = threading.Thread(target=self.work, daemon=True)
        if self.thread.ident is None:
            self.thread.start()
        self.thread.join()  # if that is interrupted, the next wait joins it
        self.work, self.after = None, ()


_Asked = _Copy | _Computation


@dataclass(slots=True)
class EmulatedLanes:
    """The CPU plays device and host. Copies, and what the host computes, happen as early or as late as is legal.

    Memory that holds nothing yet, and memory that was given back, is filled with NaN: a missing wait shows in the
    results instead of passing by luck.
    """

    early: Callable[[], bool] = field(default=lambda: True)
    """Asked at each of these: True to do it when it is issued, False to do it when somebody waits for it."""
    poison: bool = True  # fill memory with NaN
    _pending: dict[Lane, deque[_Asked]] = field(
        default_factory=lambda: {"out": deque(), "in": deque(), "host": deque()}
    )

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

    def copy(self, way: Direction, device: torch.UntypedStorage, host: torch.Tensor, after: Sequence[Any]) -> _Asked:
        return self._issue(_Copy(way, device, host, after))

    def compute(self, work: Work, after: Sequence[Any]) -> _Asked:
        return self._issue(_Computation(work, after))

    def _issue(self, asked: _Asked) -> _Asked:
        self._pending[asked.lane].append(asked)
        if self.early():
            self.wait(asked)
        return asked

    def wait(self, event: _Asked | None) -> None:
        while event is not None and not event.done:
            first = self._pending[event.lane][0]
            for earlier in first.after:
                self.wait(earlier)
            first.carry_out()
            self._pending[event.lane].popleft()  # not before: one that is interrupted is carried out later

    def host_memory(self, nbytes: int) -> torch.Tensor:
        host = torch.from_numpy(np.empty(nbytes, dtype=np.uint8))  # no operation, so that no meter counts it
        return host.fill_(0xFF) if self.poison else host

    def finish(self, lane: Lane | None = None) -> None:
        for asked in [*self._pending.values()] if lane is None else [self._pending[lane]]:
            if asked:
                self.wait(asked[-1])


def _moment_on(stream: torch.cuda.Stream) -> torch.cuda.Event:
    """When all that was issued to a stream so far is done."""
    event = torch.cuda.Event()
    event.record(stream)
    return event


@dataclass(slots=True, eq=False)
class _OnHost:
    """The event of what a thread of the host computes."""

    over: threading.Event


@dataclass(slots=True, eq=False)
class _Later:
    """The event of a copy that waits for the host, and is issued once it may start."""

    way: Direction
    given: tuple[torch.UntypedStorage, torch.Tensor] | None
    after: Sequence[Any]
    issued: threading.Event
    end: Any = None  # once it is issued

    @property
    def may_start(self) -> bool:
        """Whether all that it waits for is known to CUDA's streams."""
        return all(not isinstance(one, _OnHost) or one.over.is_set() for one in self.after)


class CudaLanes:
    """A CUDA device and pinned host memory: the current stream computes, one stream copies out and one copies in.

    Device buffers are allocated on the compute stream and given back only after that stream waits for the copy's end:
    the caching allocator needs no `record_stream`.

    A thread of its own computes on the host. Streams cannot wait for it: a copy that does, and those after it, are
    issued when it is over.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._compute = torch.cuda.current_stream(device)
        self._streams = {"out": torch.cuda.Stream(device), "in": torch.cuda.Stream(device)}
        self._host: Any = ThreadPoolExecutor(1, "memsched-host")
        self._flag = threading.Event
        self._last: _OnHost | None = None  # of what the host computes
        self._error: BaseException | None = None  # of that thread, from the driver
        self._lock = threading.RLock()  # Python may tell of dropped tensors within
        self._waiting: dict[Direction, deque[_Later]] = {"out": deque(), "in": deque()}
        self._issued_later: list[Any] = []  # what that thread has issued; it must not be the last to have tensors

    def begin(self) -> None:
        self._compute = torch.cuda.current_stream(self._device)

    def allocate(self, nbytes: int) -> torch.UntypedStorage:
        return torch.empty(nbytes, dtype=torch.uint8, device=self._device).untyped_storage()

    def give_back(self, storage: torch.UntypedStorage) -> None:
        pass

    def now(self) -> torch.cuda.Event:
        return _moment_on(self._compute)

    def copy(self, way: Direction, device: torch.UntypedStorage, host: torch.Tensor, after: Sequence[Any]) -> Any:
        self._let_go()
        asked = _Later(way, (device, host), after, self._flag())
        with self._lock:
            if not self._waiting[way] and asked.may_start:
                return self._issue(way, device, host, after)
            self._waiting[way].append(asked)
        return asked

    def _issue(self, way: Direction, device: torch.UntypedStorage, host: torch.Tensor, after: Sequence[Any]) -> Any:
        stream = self._streams[way]
        for event in after:
            if not isinstance(event, _OnHost):
                stream.wait_event(event.end if isinstance(event, _Later) else event)
        with torch.no_grad(), torch.cuda.stream(stream):
            if way == "out":
                host.copy_(as_bytes(device), non_blocking=True)
            else:
                as_bytes(device).copy_(host, non_blocking=True)
        return _moment_on(stream)

    def _let_go(self) -> None:
        """Of what was issued: whoever issues the rest may be the last to have it."""
        with self._lock:
            issued, self._issued_later = self._issued_later, []
        del issued

    def _issue_those_that_may(self) -> None:
        with self._lock:
            for waiting in self._waiting.values():
                while waiting and waiting[0].may_start:
                    one = waiting[0]
                    assert one.given is not None
                    try:
                        one.end = self._issue(one.way, *one.given, one.after)
                    except BaseException as error:  # told by whoever waits
                        self._error = error
                    self._issued_later.append(one.given)
                    one.given, one.after = None, ()
                    one.issued.set()
                    waiting.popleft()

    def compute(self, work: Work, after: Sequence[Any]) -> _OnHost:
        self._last = made = _OnHost(self._flag())
        self._host.submit(self._compute_on_host, work, after, made)
        return made

    def _compute_on_host(self, work: Work, after: Sequence[Any], event: _OnHost) -> None:
        try:
            for one in after:
                if isinstance(one, _Later):
                    one.issued.wait()
                if not isinstance(one, _OnHost):  # which is over, as there is one thread
                    (one.end if isinstance(one, _Later) else one).synchronize()
            work()
        except BaseException as error:  # told by whoever waits
            self._error = error
        finally:
            event.over.set()
            self._issue_those_that_may()

    def wait(self, event: Any) -> None:
        if isinstance(event, _OnHost):
            event.over.wait()
            return
        if isinstance(event, _Later):
            event.issued.wait()
            self._let_go()
            event = event.end
            if event is None:
                raise self._failed()
        self._compute.wait_event(event)

    def _failed(self) -> MemschedError:
        found = MemschedError(f"a copy, or what waits for one on the host, has failed: {self._error}")
        found.__cause__ = self._error
        return found

    def host_memory(self, nbytes: int) -> torch.Tensor:
        return pinned(nbytes)

    def finish(self, lane: Lane | None = None) -> None:
        if lane != "out" and self._last is not None:  # nothing that leaves waits for the host
            self._last.over.wait()
            self._issue_those_that_may()
        if self._error is not None:
            failed, self._error = self._failed(), None
            raise failed
        if lane is None:
            torch.cuda.synchronize(self._device)
        elif lane != "host":
            self._streams[lane].synchronize()
        self._let_go()


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

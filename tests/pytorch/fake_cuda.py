"""A stand-in for torch.cuda on the CPU that finds races between streams.

Everything is done at once and in the order of issue, so results are right whatever the waits. What is checked is what a
GPU would have been free to do: every stream carries a vector clock, records and waits pass it on, and two accesses to
the same bytes that no chain of records and waits orders are a race, as is giving back memory that a stream may still be
using.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

Clock = dict[str, int]


def _merge(one: Clock, other: Clock) -> None:
    for name, time in other.items():
        one[name] = max(one.get(name, 0), time)


@dataclass(eq=False)
class Stream:
    """A stream, and what is known on it to have happened: of each stream so many operations."""

    cuda: FakeCuda
    name: str
    clock: Clock = field(default_factory=dict)

    def wait_event(self, event: Event) -> None:
        self.cuda.log.append((self.name, "wait", event))
        _merge(self.clock, event.clock)

    def synchronize(self) -> None:
        _merge(self.cuda.host, self.clock)

    def tick(self) -> int:
        """One more operation; all that the host knows happened before it."""
        _merge(self.clock, self.cuda.host)
        self.clock[self.name] = self.clock.get(self.name, 0) + 1
        return self.clock[self.name]


@dataclass(eq=False)
class Event:
    """What had happened on a stream when it was recorded."""

    cuda: FakeCuda
    clock: Clock = field(default_factory=dict)
    stream: Stream | None = None
    time: float = 0.0

    def record(self, stream: Stream) -> None:
        self.stream = stream
        stream.tick()
        self.clock = dict(stream.clock)
        self.time = float(len(self.cuda.log))
        self.cuda.log.append((stream.name, "record", self))

    def query(self) -> bool:
        """Whether the host learns that it has happened: as the test wants it."""
        happened = self.cuda.reached()
        if happened:
            _merge(self.cuda.host, self.clock)
        return happened

    def synchronize(self) -> None:
        _merge(self.cuda.host, self.clock)

    def elapsed_time(self, other: Event) -> float:
        return other.time - self.time


@dataclass
class _Access:
    """Who read or wrote some bytes, and when on its own stream."""

    start: int
    end: int
    stream: Stream
    time: int
    wrote: bool


class FakeCuda(TorchDispatchMode):
    """Entered, it sees every operation of the CPU as one of the current stream.

    Attributes
    ----------
    races : list of str
    log : list of (stream, "wait" | "record" | operation, event or None)
    reached : callable
        What queries of events answer.
    """

    def __init__(self, reached: Callable[[], bool] = lambda: False) -> None:
        super().__init__()
        self.reached = reached
        self.host: Clock = {}
        self.log: list[tuple[str, str, Event | None]] = []
        self.races: list[str] = []
        self.registered: dict[int, int] = {}
        self.refuse = 0
        self.current = Stream(self, "compute")
        self._accesses: dict[Any, list[_Access]] = {}  # by storage, or by memory that is pinned
        self._streams = 0

    def count(self, tensors: Any, beside: int = 0) -> None:
        """A meter of compiled steps is told of tensors that come from elsewhere."""

    def install(self, patch: Any) -> None:
        """Let torch.cuda lead here (`patch` is pytest's monkeypatch)."""
        for name, value in {
            "Stream": self._new_stream,
            "Event": lambda enable_timing=False: Event(self),
            "current_stream": lambda device=None: self.current,
            "stream": self._on,
            "synchronize": lambda device=None: self._synchronize(),
            "cudart": lambda: SimpleNamespace(cudaHostRegister=self._register, cudaHostUnregister=self._unregister),
        }.items():
            patch.setattr(torch.cuda, name, value)

    def _new_stream(self, device: Any = None) -> Stream:
        self._streams += 1
        return Stream(self, f"stream {self._streams}")

    @contextlib.contextmanager
    def _on(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def _synchronize(self) -> None:
        for _, _, event in self.log:
            if event is not None:
                _merge(self.host, event.clock)
        _merge(self.host, self.current.clock)

    def _register(self, address: int, nbytes: int, flags: int) -> int:
        if not self.refuse:
            self.registered[address] = nbytes
        return self.refuse

    def _unregister(self, address: int) -> int:
        del self.registered[address]
        self._accesses.pop(("pinned", address), None)
        return 0

    def worker(self, early: Callable[[], bool]) -> Worker:
        """What computes on the host in place of a thread."""
        return Worker(self, early)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.partition("::")[2]
        # What only looks at memory in another way, or reserves it, reads and writes nothing.
        if func.is_view or name in ("set_", "detach", "empty", "empty_strided", "empty_like", "_to_copy_meta"):
            for tensor in _tensors(out):
                self._follow(tensor.untyped_storage())
            return out
        stream, time = self.current, self.current.tick()
        self.log.append((stream.name, name, None))
        written = _written(func, args, kwargs or {})
        for tensor in _tensors((args, kwargs)):
            self._access(tensor, stream, time, wrote=id(tensor) in written, name=name)
        for tensor in _tensors(out):
            self._access(tensor, stream, time, wrote=True, name=name)
        return out

    def _access(self, tensor: torch.Tensor, stream: Stream, time: int, *, wrote: bool, name: str) -> None:
        storage = tensor.untyped_storage()
        known = self._follow(storage)
        start, end = 0, storage.nbytes()
        if tensor.dtype is torch.uint8 and tensor.is_contiguous():
            start = tensor.storage_offset()
            end = start + tensor.numel()
        for other in known:
            clash = (wrote or other.wrote) and other.start < end and start < other.end
            if clash and other.stream is not stream and stream.clock.get(other.stream.name, 0) < other.time:
                what = f"{'write' if other.wrote else 'read'} on {other.stream.name}"
                self.races.append(f"{name} on {stream.name} does not wait for a {what} of {end - start} bytes")
        known[:] = [
            a for a in known if not (a.stream is stream and a.wrote <= wrote and start <= a.start and a.end <= end)
        ]
        known.append(_Access(start, end, stream, time, wrote))

    def _follow(self, storage: torch.UntypedStorage) -> list[_Access]:
        key, address = storage._cdata, storage.data_ptr()
        for base, nbytes in self.registered.items():
            if base <= address < base + nbytes:  # whoever drops a tensor there does not give it back
                return self._accesses.setdefault(("pinned", base), [])
        if key not in self._accesses:
            self._accesses[key] = []
            weakref.finalize(storage, FakeCuda._dropped, weakref.ref(self), key).atexit = False
        return self._accesses[key]

    @staticmethod
    def _dropped(fake: weakref.ref[FakeCuda], key: int) -> None:
        """The allocator of CUDA hands the bytes to the next operation on the stream that they were allocated on."""
        alive = fake()
        for access in alive._accesses.pop(key, ()) if alive is not None else ():
            assert alive is not None
            compute = dict(alive.current.clock)
            _merge(compute, alive.host)
            if access.stream is not alive.current and compute.get(access.stream.name, 0) < access.time:
                alive.races.append(
                    f"{access.end - access.start} bytes are given back while {access.stream.name} copies"
                )


class Worker:
    """A thread of the host that computes when it is asked to, or when somebody waits for it.

    It is a stream, and knows no more of the others than it has waited for.
    """

    def __init__(self, cuda: FakeCuda, early: Callable[[], bool]) -> None:
        self.stream, self._cuda, self._early = Stream(cuda, "host"), cuda, early
        self._asked: deque[Callable[[], None]] = deque()
        self.done = 0

    def submit(self, call: Callable[..., None], *args: Any) -> None:
        """As a thread pool of one thread takes it. The thread knows what whoever asks it knows."""
        known = dict(self._cuda.host)
        self._asked.append(lambda: (_merge(self.stream.clock, known), call(*args))[1])
        while self._asked and self._early():
            self.compute()

    def compute(self) -> None:
        """The first that it was asked for."""
        before, self._cuda.host = self._cuda.host, self.stream.clock
        try:
            with _disable_current_modes(), self._cuda, self._cuda._on(self.stream):
                self._asked.popleft()()
                self.done += 1
        finally:
            self._cuda.host = before

    def flag(self) -> Flag:
        """In place of `threading.Event`."""
        return Flag(self)


class Flag:
    """Whoever sees that it is set knows what was known to who has set it."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._clock: Clock | None = None

    def set(self) -> None:
        self._clock = dict(self._worker._cuda.host)

    def is_set(self) -> bool:
        if self._clock is not None:
            _merge(self._worker._cuda.host, self._clock)
        return self._clock is not None

    def wait(self) -> None:
        while not self.is_set():
            self._worker.compute()


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _written(func: Any, args: Any, kwargs: Any) -> set[int]:
    """The arguments that an operation writes to, by its schema."""
    found: set[int] = set()
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            found.update(id(tensor) for tensor in _tensors(value))
    return found

"""Copies between the device and the host, as operations of generated code."""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from memsched.errors import MemschedError
from memsched.torch.lanes import Lane, Lanes, Work, as_bytes, lanes_on

_R = TypeVar("_R")


def _one_at_a_time(method: Callable[..., _R]) -> Callable[..., _R]:
    @functools.wraps(method)
    def locked(self: Traffic, *args: Any) -> _R:
        with self._lock:
            self._tidy()
            return method(self, *args)

    return locked


@dataclass(slots=True, eq=False)
class _OnHost:
    """What is known of a copy on the host."""

    layout: tuple[Any, ...]  # of what was copied
    written: Any = None  # the event after which it is complete
    read: Any = None  # that of the last copy to the device


@dataclass(slots=True, eq=False)
class _Coming:
    """A copy to the device. Nobody has waited for its event if that is there."""

    end: Any


class Traffic:
    """The copies of one device, and the host memory that they use again and again."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self.most = 0  # bytes that some plan offloads: so much host memory may be kept
        self._used = 0  # of these
        self._lock = threading.RLock()  # threads that train share a device's copies
        self._spare: dict[int, list[torch.Tensor]] = {}  # by bytes; no list is empty
        self._hosts: dict[int, _OnHost] = {}  # by address of the storage
        self._coming: dict[int, _Coming] = {}  # by address of the storage on the device
        # Storages that are gone, by address, and the memory under those of the host. Python may tell of that in any
        # thread, also in one for which whoever has the lock waits. By now, another storage may have the address.
        self._gone: deque[tuple[int, _OnHost | _Coming, torch.Tensor | None]] = deque()

    def _tidy(self) -> None:
        while self._gone:
            key, known, memory = self._gone.popleft()
            if isinstance(known, _Coming):
                if self._coming.get(key) is known:
                    del self._coming[key]
            elif memory is not None:
                self._take_back(key, known, memory)

    @property
    def spare_bytes(self) -> int:
        """Of host memory that waits to be used again."""
        with self._lock:
            self._tidy()
            return sum(nbytes * len(spare) for nbytes, spare in self._spare.items())

    @_one_at_a_time
    def offload(self, value: torch.Tensor) -> torch.Tensor:
        """Begin to copy the bytes of a tensor to the host; it must stay until `gone`."""
        self.lanes.begin()
        host = self._host_of(value)
        self._known(host).written = self.lanes.copy("out", value.untyped_storage(), host, [self.lanes.now()])
        return host

    @_one_at_a_time
    def adopt(self, value: torch.Tensor) -> torch.Tensor:
        """A copy of a tensor that lies on the host, as if it had been offloaded."""
        host = self.room_for(value)
        as_bytes(host.untyped_storage()).copy_(as_bytes(value.untyped_storage()))
        return host

    @_one_at_a_time
    def room_for(self, like: torch.Tensor) -> torch.Tensor:
        """Memory on the host, as if a tensor had been offloaded; nothing reads it any more, or has written it."""
        host = self._host_of(like)
        self.lanes.finish("in")  # one may read memory that is used again, and only the device waits for it
        self._known(host).written = self.lanes.now()
        return host

    def _host_of(self, value: torch.Tensor) -> torch.Tensor:
        """Host memory for a tensor, and its layout there."""
        nbytes = value.untyped_storage().nbytes()
        self._used += nbytes
        memory = self._take_spare(nbytes) if nbytes in self._spare else self._new_memory(nbytes)
        host = torch.from_numpy(memory.numpy())  # a tensor of its own: when it is dropped, the memory is spare
        layout = value.dtype, value.storage_offset(), value.shape, value.stride(), value.is_conj(), value.is_neg()
        storage, known = host.untyped_storage(), _OnHost(layout)
        self._hosts[storage._cdata] = known
        weakref.finalize(storage, self._gone.append, (storage._cdata, known, memory)).atexit = False
        return host

    def _new_memory(self, nbytes: int) -> torch.Tensor:
        """Memory of another size than what is spare, of which some goes so that plans of many sizes share it."""
        while self._spare and self._used + self.spare_bytes > self.most:
            self._take_spare(next(iter(self._spare)))
        return self.lanes.host_memory(nbytes)

    def _take_spare(self, nbytes: int) -> torch.Tensor:
        memory = self._spare[nbytes].pop()
        if not self._spare[nbytes]:
            del self._spare[nbytes]
        return memory

    @_one_at_a_time
    def gone(self, value: torch.Tensor, host: torch.Tensor, owned: bool) -> None:
        """Let the computation wait until the copy to the host has ended; what the caller may hold keeps its content."""
        self.lanes.begin()
        self.lanes.wait(self._known(host).written)
        if owned:
            self.lanes.give_back(value.untyped_storage())

    @_one_at_a_time
    def prefetch(self, host: torch.Tensor) -> torch.Tensor:
        """Begin to copy a tensor back to the device, with the layout that it had there."""
        self.lanes.begin()
        known, storage = self._known(host), self.lanes.allocate(host.numel())
        known.read = self.lanes.copy("in", storage, host, [self.lanes.now(), known.written])
        self._coming[storage._cdata] = coming = _Coming(known.read)
        weakref.finalize(storage, self._given_up, storage._cdata, coming).atexit = False
        dtype, offset, shape, stride, *marks = known.layout
        value = torch.empty(0, dtype=dtype, device=storage.device).set_(storage, offset, shape, stride)
        return _marked(value, *marks)

    @_one_at_a_time
    def on_host(self, host: torch.Tensor) -> torch.Tensor:
        """What was copied to the host, as a tensor there; only what the host computes may look at it."""
        dtype, offset, shape, stride, *marks = self._known(host).layout
        return _marked(host.view(dtype).as_strided(shape, stride, offset), *marks)

    @_one_at_a_time
    def compute(self, work: Work, reads: Sequence[torch.Tensor], changes: Sequence[torch.Tensor]) -> None:
        """Let the host do some work once copies on the host are complete that it reads, or changes."""
        self.lanes.begin()
        read, changed = list(map(self._known, reads)), list(map(self._known, changes))
        fetches = [one.read for one in changed if one.read is not None]
        event = self.lanes.compute(work, [*(one.written for one in (*read, *changed)), *fetches])
        for one in changed:
            one.written = event

    @_one_at_a_time
    def arrived(self, value: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
        """Let the computation wait until a tensor is back; its copy on the host must stay until then."""
        self.lanes.begin()
        coming = self._coming.pop(value.untyped_storage()._cdata)
        self.lanes.wait(coming.end)
        coming.end = None
        return value

    @_one_at_a_time
    def finish(self, lane: Lane) -> None:
        """Let the calling thread wait until all copies of one direction have ended, or all that the host computes."""
        self.lanes.finish(lane)

    @_one_at_a_time
    def tidy(self) -> None:
        """Let go of what belonged to dropped copies, as each call does."""

    def _given_up(self, key: int, coming: _Coming) -> None:
        """A step that failed drops what is on its way: others may get the memory, but not before the copy has ended."""
        if coming.end is not None:
            self.lanes.wait(coming.end)
            self._gone.append((key, coming, None))

    @_one_at_a_time
    def knows(self, host: torch.Tensor) -> bool:
        """Whether a copy on the host is one of its own."""
        return host.untyped_storage()._cdata in self._hosts

    def _known(self, host: torch.Tensor) -> _OnHost:
        known = self._hosts.get(host.untyped_storage()._cdata)
        if known is None:
            raise MemschedError(
                "a tensor that was offloaded is not the one that comes back: hooks around the call, such as "
                "saved_tensors_hooks, must keep tensors as they are; do without them, or plan with bandwidth=0"
            )
        return known

    def _take_back(self, key: int, known: _OnHost, memory: torch.Tensor) -> None:
        if known.read is not None:  # which may still be under way
            self.lanes.wait(known.read)
        if self._hosts.get(key) is known:
            del self._hosts[key]
        self._used -= memory.numel()
        if self._used + self.spare_bytes + memory.numel() <= self.most:
            self._spare.setdefault(memory.numel(), []).append(memory)


def _marked(value: torch.Tensor, conjugated: bool, negated: bool) -> torch.Tensor:
    """What the bytes stand for, not what they are."""
    value = torch._conj(value) if conjugated else value
    return torch._neg_view(value) if negated else value


_TRAFFIC: dict[torch.device, Traffic] = {}


def traffic_on(device: torch.device) -> Traffic:
    """The copies of a device."""
    if device not in _TRAFFIC:
        _TRAFFIC[device] = Traffic(lanes_on(device))
    return _TRAFFIC[device]


def expect(device: torch.device, nbytes: int) -> None:
    """Let so much host memory be kept, for a plan that offloads so many bytes; of a GPU say what is not known yet."""
    traffic = traffic_on(device)
    traffic.most = max(traffic.most, nbytes)
    if nbytes and device.type == "cuda":
        _tell_of_bits()


@functools.cache
def _tell_of_bits() -> None:
    warnings.warn(
        "a plan offloads on a GPU, where one step that offloaded much had another gradient than plain PyTorch, and why "
        "is not known: compare a step of this model before it trains, memsched.torch.plan(..).verify(model, args)",
        stacklevel=2,
    )


def use(device: torch.device, lanes: Lanes) -> Traffic:
    """Let copies of a device go over other streams from now on, such as emulated ones that are late; for trials."""
    before, made = traffic_on(device), Traffic(lanes)
    made.most = before.most
    before.tidy()
    _TRAFFIC[device] = made
    return made


# What generated code calls: the methods of the same names, on the copies of a tensor's device.


def offload(value: torch.Tensor) -> torch.Tensor:
    return traffic_on(value.device).offload(value)


def gone(value: torch.Tensor, host: torch.Tensor, owned: bool) -> None:
    traffic_on(value.device).gone(value, host, owned)


def prefetch(host: torch.Tensor, device: torch.device) -> torch.Tensor:
    # Where a value was on the host already, as kernels of CUDA leave their seeds there, so is what comes back.
    there = [one for one in (traffic_on(device), traffic_on(torch.device("cpu"))) if one.knows(host)]
    return (there or [traffic_on(device)])[0].prefetch(host)


def arrived(value: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
    return traffic_on(value.device).arrived(value, host)


def on_host(host: torch.Tensor, device: torch.device) -> torch.Tensor:
    return traffic_on(device).on_host(host)


def kept(value: torch.Tensor, whole: bool) -> torch.Tensor:
    """A copy of an input that is about to change, with its strides; if `whole`, with all that lies in its storage."""
    if not whole:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device).copy_(value)
    everything = value.untyped_storage().nbytes() // value.element_size()
    copied = value.as_strided((everything,), (1,), 0).clone()
    return copied.as_strided(value.shape, value.stride(), value.storage_offset())


@contextlib.contextmanager
def using(device: torch.device, lanes: Lanes) -> Iterator[Traffic]:
    """Let copies of a device go over other streams for a while."""
    before = traffic_on(device)
    try:
        yield use(device, lanes)
    finally:
        traffic_on(device).tidy()
        _TRAFFIC[device] = before

"""A step whose tensors lie in one block of memory, at addresses that were planned."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any

import torch

from memsched.arena.placement import Placement
from memsched.errors import InvalidInputError, shown
from memsched.support import quantities
from memsched.support.arguments import public
from memsched.support.formats import counted, format_bytes
from memsched.support.types import Quantity
from memsched.torch.arena import cuda, native
from memsched.torch.arena.lifetimes import Recorded, Recorder, placed
from memsched.torch.arena.native import PASS, Counts, Native, Requests

_ALIGNMENT = {"cpu": 64, "cuda": 512}  # of PyTorch's own allocators
_MOST_STRANGE = 0.1  # of the requests of a step that is served
_MOST_SEEN = 32  # steps that are recorded until two are alike: recording takes time


def _nobody() -> Arena | None:
    return None


_serving: Callable[[], Arena | None] = _nobody  # whose step goes on


class Arena:
    """Serves a training step that repeats from one block of memory, at addresses that were planned.

    The requests of a few steps are recorded. Once two in succession ask for the same in the same order, they are placed
    by `memsched.place`, and from then on each request of the step is served at its address. What is reserved is what is
    planned: nothing is lost between the tensors. A request that comes otherwise, or whose place is still taken, is
    served by PyTorch's own allocator and counted, so that no tensor is ever overwritten. The steps are any code: plain
    PyTorch, compiled models, planned ones, with the optimizer's updates or without. One step is served at a time: where
    another arena is entered, this one's step is over.

    Parameters
    ----------
    device : str or torch.device
        "cpu", for the thread that enters; or "cuda": then make it before anything is on a GPU, as it takes the place of
        PyTorch's allocator for the whole process, and enter it on one stream.
    time_limit : float or str
        Seconds to place the requests, once, at the end of a step. Most take a fraction of one.

    Attributes
    ----------
    placement : Placement or None
        Buffers and offsets of a step; None until two steps are alike. The times are its events: each request, and each
        time that something is given back. What is alive from one step into the next is two buffers.
    counts : Counts or None
        What the last step asked for, and which requests were served at their addresses.

    Raises
    ------
    InvalidInputError
    MemschedError
        There is no C++ compiler; or something is on a GPU.

    Examples
    --------
    >>> import torch, memsched
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> arena = memsched.torch.Arena()
    >>> for _ in range(5):
    ...     with arena:
    ...         optimizer.zero_grad()
    ...         model(torch.randn(32, 64)).square().mean().backward()
    ...         optimizer.step()
    >>> arena.counts.strange, arena.counts.blocked
    ((0, 0), (0, 0))
    >>> arena.placement.height == arena.placement.load
    True
    """

    _checked = False  # whether what is given back is filled with NaN: of tests, on the CPU

    @public
    def __init__(self, device: str | torch.device = "cpu", *, time_limit: Quantity = 2.0) -> None:
        kind = device.type if isinstance(device, torch.device) else device
        if kind not in _ALIGNMENT:
            raise InvalidInputError(f"device is {shown(device)}; it must be 'cpu' or 'cuda'")
        self.device: str = kind
        self._limit = quantities.time_limit(time_limit)
        self.placement: Placement | None = None
        self.counts: Counts | None = None
        self._native: Native
        self._begin: Callable[..., str | None]
        if kind == "cpu":
            self._native = here = native.cpu()
            self._begin = partial(here.begin, checked=self._checked)
        else:
            self._native = there = cuda.taken_over()
            self._begin = partial(cuda.begin, there)
        self._recorder: Recorder | None = Recorder()
        self._last: Recorded | None = None
        self._requests: Requests | None = None
        self._address = self._bytes = 0
        self._told, self._seen, self._why = False, 0, "no two steps in succession have been alike yet"
        self._where: str | None = None  # of a GPU: the device and the stream

    def __repr__(self) -> str:
        if self.placement is None or self.counts is None:
            return f"Arena({self.device!r}): {self._why}"
        height, counts = self.placement.height, self.counts
        return (
            f"Arena({self.device!r}): {format_bytes(height)} for what a step asks for, of which "
            f"{format_bytes(height - self.placement.load)} are lost between tensors; {counts.planned[0]} of "
            f"{counted(counts.calls, 'request')} in the last step had planned addresses"
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise InvalidInputError(
            "an Arena is memory of this process, and can neither be copied nor pickled; make another"
        )

    def __enter__(self) -> Arena:
        global _serving
        if self._recorder is None and self._requests is None:
            return self  # its steps never repeat, or there is no memory
        self._between = self._native.take_events()
        _serving = weakref.ref(self)
        try:
            where = self._begin(recorded=self._recorder is not None)
            if where != self._where and self._address:
                raise InvalidInputError(
                    f"this arena serves {self._where} and is entered on {where}; enter it there, or make another"
                )
            self._where = where
            self._native.expect(self._address, self._requests)
        except BaseException:
            self._native.end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        global _serving
        if _serving() is not self:  # another one has begun since, or this has not
            return
        self._native.end()
        counts, _serving = self._native.counts(), _nobody
        self.counts = counts
        if kind is None and self._recorder is not None:
            self._learn(self._recorder)
        elif kind is None:
            self._tell(counts)

    def _learn(self, recorder: Recorder) -> None:
        step = recorder.step(self._between, self._native.take_events())
        self._seen += 1
        if step != self._last or not step.asked:
            self._last = step
            if self._seen == _MOST_SEEN:
                self._give_up(f"no two steps in succession have been alike in {_MOST_SEEN}")
            return
        addresses, self.placement = placed(step, _ALIGNMENT[self.device], self._limit)
        pairs = zip(step.asked, addresses, strict=True)
        self._requests = Requests([(one.bytes, PASS if at is None else at) for one, at in pairs])
        self._bytes = self.placement.height
        if self._bytes:
            try:
                self._address = self._native.make(self._bytes, checked=self._checked)
            except MemoryError:
                self._give_up(f"there is no memory for an arena of {format_bytes(self._bytes)}")
                return
            weakref.finalize(self, self._native.free, self._address)
        self._recorder = self._last = None

    def _give_up(self, why: str) -> None:
        self._recorder = self._last = self._requests = self.placement = None
        self._why = why
        warnings.warn(f"{why}, so PyTorch's own allocator goes on serving them", UserWarning, stacklevel=4)

    def _tell(self, counts: Counts) -> None:
        missed = counts.strange[0] + counts.blocked[0]
        if not self._told and missed > _MOST_STRANGE * counts.calls:
            self._told = True
            warnings.warn(
                f"this step is another one than was placed: PyTorch's own allocator served {missed} of its "
                f"{counted(counts.calls, 'request')}, beside the arena; give steps of "
                "another kind an arena of their own",
                UserWarning,
                stacklevel=3,
            )

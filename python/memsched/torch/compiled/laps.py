"""Times of operations as they run in training, by which a step is planned anew."""

from __future__ import annotations

import itertools
import weakref
from collections import defaultdict
from collections.abc import Iterable
from statistics import median
from typing import Any, Protocol

import torch

from memsched.torch.compiled import clock
from memsched.torch.compiled.joint import Joint

_DRIFT = 0.2  # by which all operations together take another time, until the step is planned anew
_PAUSE = 50  # times as many steps as are timed, until they are timed again
_SERIAL = itertools.count()
_KNOWN: weakref.WeakValueDictionary[int, Laps]  # by serial number


class Laps:
    """Of the operations of one graph."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._last = device, self._mark(device)
        self.steps, self._pause = 0, 0  # that were timed; that are not to be, before others are
        self._present: defaultdict[str, list[tuple[Any, Any]]] = defaultdict(list)  # of the step that runs
        self._kept: defaultdict[str, list[float]] = defaultdict(list)  # seconds, of steps that are over
        self.serial = next(_SERIAL)
        _KNOWN[self.serial] = self

    @property
    def on(self) -> bool:
        """Whether code runs that is timed."""
        return self._pause == 0

    @staticmethod
    def _mark(device: torch.device) -> Any:
        """The time: of the device, or of this thread where it computes alone, so that others do not count."""
        if device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record(torch.cuda.current_stream(device))
            return event
        return clock.now()

    def lap(self, name: str) -> None:
        """An operation is over; without a name, what is between two of them."""
        now = self._mark(self._device)
        if name:
            self._present[name].append((self._last, now))
        self._last = now

    def end(self, *, counts: bool) -> None:
        """The step is over; whether its times count."""
        found, self._present = self._present, defaultdict(list)
        self.steps += counts and self.on
        self._pause = max(0, self._pause - 1)
        if self._device.type == "cuda" and found:
            torch.cuda.synchronize(self._device)
        for name, pairs in found.items() if counts else ():
            self._kept[name] += [self._seconds(first, last) for first, last in pairs]

    def rest(self, steps: int) -> None:
        """So many steps are not timed."""
        self.steps, self._pause = 0, steps

    def _seconds(self, first: Any, last: Any) -> float:
        return float(first.elapsed_time(last)) / 1000 if self._device.type == "cuda" else last - first

    def medians(self) -> dict[str, float]:
        """Seconds of each operation, of which none is kept then."""
        found, self._kept = self._kept, defaultdict(list)
        return {name: median(seconds) for name, seconds in found.items()}


_KNOWN = weakref.WeakValueDictionary()


def lap(serial: int, name: str) -> None:
    """What generated code calls."""
    _KNOWN[serial].lap(name)


class Timed(Protocol):
    """A graph whose operations are timed."""

    joint: Joint
    laps: Laps | None


def asks_for_another_plan(units: Iterable[Timed], enough: int, *, counts: bool) -> bool:
    """A step of these graphs is over: whether so many have been timed, by which it is to be planned anew.

    `counts` says whether this step does. After that there is a pause, and then so many are timed again.
    """
    timed = [(one.joint, one.laps) for one in units if one.laps is not None]
    for _, laps in timed:
        laps.end(counts=counts)
    if not timed or min(laps.steps for _, laps in timed) < enough:
        return False
    before, now = 0.0, 0.0
    for joint, laps in timed:
        found, known = laps.medians(), joint.lapped
        before += sum(known.get(name, 0.0) for name in found) if known else 0.0
        now += sum(found.values())
        joint.lapped = {**(known or {}), **found}
        laps.rest(_PAUSE * enough)
    return not abs(now - before) <= _DRIFT * before

"""From what a step asks for to addresses, where the step repeats."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from memsched.arena.buffers import Buffer
from memsched.arena.placement import Placement, place_buffers


@dataclass(frozen=True, slots=True)
class Asked:
    """One request of a step, and when what it got is given back.

    Attributes
    ----------
    bytes : int
    start : int
        The event of the step that it is.
    end : int or None
        The event of the step at which it is given back; None if that is later.
    next_end : int or None
        If it is later, the event of the next step at which it is given back: 0 if that is before that step begins, None
        if it is after that step.
    """

    bytes: int
    start: int
    end: int | None = None
    next_end: int | None = None

    @property
    def repeats(self) -> bool:
        """Whether it can lie at the same address in every step: it is gone when the next step asks for it."""
        return self.end is not None or (self.next_end is not None and self.next_end <= self.start)


@dataclass(frozen=True, slots=True)
class Recorded:
    """A step as it was recorded.

    Attributes
    ----------
    asked : tuple of Asked
        In order. `next_end` is that of the step before: of the request at the same place of its list.
    events : int
    """

    asked: tuple[Asked, ...]
    events: int


class Recorder:
    """Reads the events of one step after another."""

    def __init__(self) -> None:
        self._alive: dict[int, int] = {}  # address -> the request of the last step whose memory it is

    def step(self, between: Sequence[tuple[int, int]], events: Sequence[tuple[int, int]]) -> Recorded:
        """What one step asked for.

        Parameters
        ----------
        between : sequence
            What was given back after the step before and before this one.
        events : sequence
            Of this step: (address, bytes) of what it got, (address, 0) of what it gave back.
        """
        earlier, self._alive = self._alive, {}
        ended = {earlier.pop(where): 0 for where, _ in between if where in earlier}
        asked: list[Asked] = []
        for moment, (where, nbytes) in enumerate(events):
            if nbytes:
                self._alive[where] = len(asked)
                asked.append(Asked(nbytes, moment))
            elif where in self._alive:
                number = self._alive.pop(where)
                asked[number] = dataclasses.replace(asked[number], end=moment)
            elif where in earlier:
                ended[earlier.pop(where)] = moment
        later = {k for k, one in enumerate(asked) if one.end is None}
        asked = [dataclasses.replace(one, next_end=ended.get(k)) if k in later else one for k, one in enumerate(asked)]
        return Recorded(tuple(asked), len(events))


def placed(step: Recorded, alignment: int, time_limit: float | None) -> tuple[list[int | None], Placement]:
    """An address for each request of a step that repeats, and the placement that they are from.

    What is alive from one step into the next lies at the bottom, the longest alive first: all of it is alive at once,
    so that it makes no gaps there. Where that is alive twice in a step, it is two buffers of the placement. What is not
    gone when the next step asks for the same has no address.
    """
    kept = [k for k, one in enumerate(step.asked) if one.end is None and one.repeats]
    kept.sort(key=lambda k: (step.asked[k].start - (step.asked[k].next_end or 0), k))
    bottom: dict[int, int] = {}
    top = 0
    for k in kept:
        bottom[k] = top
        top += _up(step.asked[k].bytes, alignment)
    buffers: list[Buffer] = []
    numbers: list[int] = []
    for k, one in enumerate(step.asked):
        for start, end in _alive(one, step.events):
            size = _up(one.bytes, alignment)
            buffers.append(Buffer(start, end, size, alignment, bottom.get(k), name=f"request {k}"))
            numbers.append(k)
    placement = place_buffers(buffers, time_limit=time_limit)
    found = dict(zip(numbers, placement.offsets, strict=True))
    return [found.get(k) for k in range(len(step.asked))], placement


def _alive(one: Asked, events: int) -> Iterable[tuple[int, int]]:
    """When it holds memory of a step of so many events; never if it does not repeat."""
    if one.end is not None:
        yield one.start, one.end
    elif one.repeats:
        yield one.start, events
        if one.next_end:
            yield 0, one.next_end


def _up(nbytes: int, alignment: int) -> int:
    return -(-nbytes // alignment) * alignment

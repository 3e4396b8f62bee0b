"""From what a step asks for to addresses, where the step repeats."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
                asked[number] = replace(asked[number], end=moment)
            elif where in earlier:
                ended[earlier.pop(where)] = moment
        later = {k for k, one in enumerate(asked) if one.end is None}
        asked = [replace(one, next_end=ended.get(k)) if k in later else one for k, one in enumerate(asked)]
        return Recorded(tuple(asked), len(events))


def placed(step: Recorded, alignment: int, time_limit: float | None) -> tuple[list[int | None], Placement]:
    """An address for each request of a step that repeats, and the placement that they are from.

    The repeated step is cut where the fewest bytes are alive; and also where it begins, if that leaves gaps. In the
    placement, what is alive from one step into the next is two buffers. What is not gone when the next step asks for
    the same has no address.
    """
    kept = [k for k, one in enumerate(step.asked) if one.repeats]
    size = {k: _up(step.asked[k].bytes, alignment) for k in kept}
    alive = {k: _alive(step.asked[k], step.events) for k in kept}
    cuts = list(dict.fromkeys([_emptiest([(*alive[k], size[k]) for k in kept], step.events), 0]))
    limit = None if time_limit is None else time_limit / len(cuts)
    tried: list[tuple[dict[int, int], Placement]] = []
    for cut in cuts:
        tried.append(_placed_from(cut, alive, step.events, size, alignment, limit))
        if tried[-1][1].height == tried[-1][1].load:
            break
    addresses, found = min(tried, key=lambda one: one[1].height)
    twice = {k: addresses[k] for k, (_, end) in alive.items() if end > step.events}
    buffers, numbers = _buffers(alive, step.events, size, alignment, twice)
    offsets = tuple(addresses[k] for k in numbers)
    facts: dict[str, Any] = {"buffers": tuple(buffers), "offsets": offsets, "lower_bound": found.load}
    facts["runtime"] = sum(one.runtime for _, one in tried)
    return [addresses.get(k) for k in range(len(step.asked))], replace(found, **facts)


def _placed_from(
    cut: int,
    alive: Mapping[int, tuple[int, int]],
    events: int,
    size: Mapping[int, int],
    alignment: int,
    time_limit: float | None,
) -> tuple[dict[int, int], Placement]:
    """The addresses of requests, by number, of a step that is cut there, and where its buffers are.

    What is alive at the cut lies at the bottom, the longest alive first: all of it is alive at once, so that it makes
    no gaps there.
    """
    turned = {k: ((start - cut) % events, (start - cut) % events + end - start) for k, (start, end) in alive.items()}
    bottom: dict[int, int] = {}
    top = 0
    for k in sorted(turned, key=lambda k: (turned[k][0] - turned[k][1], k)):
        if turned[k][1] > events:
            bottom[k], top = top, top + size[k]
    buffers, numbers = _buffers(turned, events, size, alignment, bottom)
    found = place_buffers(buffers, time_limit=time_limit)
    return dict(zip(numbers, found.offsets, strict=True)), found


def _alive(one: Asked, events: int) -> tuple[int, int]:
    """When a request that repeats holds memory; beyond the events of the step, in the next."""
    return one.start, one.end if one.end is not None else events + (one.next_end or 0)


def _emptiest(alive: Sequence[tuple[int, int, int]], events: int) -> int:
    """The first event before which the fewest bytes are alive, of requests with start, end and bytes."""
    change = [0] * (events + 1)
    for start, end, size in alive:
        change[start] += size
        change[min(end, events)] -= size
        if end > events:
            change[0] += size
            change[end - events] -= size
    loads = list(itertools.accumulate(change[:-1]))
    return loads.index(min(loads)) if loads else 0


def _buffers(
    alive: Mapping[int, tuple[int, int]],
    events: int,
    size: Mapping[int, int],
    alignment: int,
    offset: Mapping[int, int],
) -> tuple[list[Buffer], list[int]]:
    """Of requests, by number; two of one that is alive beyond the events. With the number of each."""
    buffers: list[Buffer] = []
    numbers: list[int] = []
    for k, (begin, last) in alive.items():
        for start, end in ((begin, min(last, events)), (0, last - events)):
            if start < end:
                buffers.append(Buffer(start, end, size[k], alignment, offset.get(k), name=f"request {k}"))
                numbers.append(k)
    return buffers, numbers


def _up(nbytes: int, alignment: int) -> int:
    return -(-nbytes // alignment) * alignment

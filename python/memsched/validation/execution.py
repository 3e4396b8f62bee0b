"""The steps of a plan played against a clock, and a check of the resulting intervals alone."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from operator import attrgetter

from memsched.errors import ScheduleError
from memsched.validation.replay import AT_TIME_0, Arena, Buffer, Replay, told


class _Sums:
    """A Fenwick tree: numbers by index, initially 0, with fast prefix sums."""

    def __init__(self, count: int) -> None:
        self.tree = [0] * (count + 1)

    def add(self, index: int, value: int) -> None:
        at = index + 1
        while at < len(self.tree):
            self.tree[at] += value
            at += at & -at

    def before(self, index: int) -> int:
        total, at = 0, index
        while at > 0:
            total += self.tree[at]
            at -= at & -at
        return total


class _Owners:
    """The buffer that had each address last, in the order of the list."""

    def __init__(self) -> None:
        self.lows = [0]  # from each of these addresses to the next there is one owner
        self.buffers: list[Buffer | None] = [None]

    def give(self, buffer: Buffer) -> list[Buffer]:
        """Give a buffer its addresses; return who had them. It needs to wait for no earlier ones: these have waited."""
        if not buffer.bytes:
            return []
        high = buffer.low + buffer.bytes
        first, past = bisect_right(self.lows, buffer.low) - 1, bisect_left(self.lows, high)
        before = self.buffers[first:past]
        new = [(self.lows[first], before[0])] if self.lows[first] < buffer.low else []
        new.append((buffer.low, buffer))
        if past == len(self.lows) or self.lows[past] > high:
            new.append((high, before[-1]))
        self.lows[first:past] = [low for low, _ in new]
        self.buffers[first:past] = [one for _, one in new]
        return [one for one in before if one is not None]


def _waits(replay: Replay) -> list[list[int]]:
    """The steps whose ends each step waits for; with addresses, also those that end what lay there before."""
    waits = [list(step.waits) for step in replay.steps]
    if replay.contiguous:
        owners = _Owners()
        for buffer in replay.buffers:  # in the order of the list
            left = [old.dies for old in owners.give(buffer) if old.dies is not None]
            if buffer.born != AT_TIME_0:
                waits[buffer.born] += left
    return waits


def execute(replay: Replay) -> tuple[list[float], list[float]]:
    """Play the steps against a clock. At every event the head of each stream, and every free, may start."""
    steps, count = replay.steps, len(replay.steps)
    start, end, clock = [math.inf] * count, [math.inf] * count, 0.0
    births, returned = [0] * (count + 1), _Sums(count)  # bytes
    deaths: list[list[Buffer]] = [[] for _ in range(count)]
    for buffer in replay.buffers:
        births[buffer.born + 1] += buffer.bytes
        if buffer.dies is not None:
            deaths[buffer.dies].append(buffer)
    asked = list(accumulate(births))[1:]  # by all steps listed up to this one, started or not

    def has_memory(index: int) -> bool:
        """Bytes of earlier steps in the list count as held, unless earlier steps have actually released them."""
        asks = not replay.contiguous and any(buffer.bytes for buffer in steps[index].births)
        return not asks or asked[index] - returned.before(index) <= replay.capacity  # without bytes nothing waits

    queues: dict[str, deque[int]] = {}  # one per stream, first in, first out
    frees = list[int]()  # frees that are ready
    issued: list[list[int]] = [[] for _ in range(count)]  # steps that wait for the start of this one
    followers: list[list[int]] = [[] for _ in range(count)]  # steps that wait for the end of this one
    pending = [0] * count  # how many starts and ends a step waits for
    for index, (step, waits) in enumerate(zip(steps, _waits(replay), strict=True)):
        for other in waits:
            followers[other].append(index)
        if step.issue != AT_TIME_0:
            issued[step.issue].append(index)
        pending[index] = len(waits) + (step.issue != AT_TIME_0)
        if step.stream:
            queues.setdefault(step.stream, deque()).append(index)
        elif not pending[index]:
            frees.append(index)

    def came(waiting: list[int]) -> None:
        for index in waiting:
            pending[index] -= 1
            if not pending[index] and not steps[index].stream:
                frees.append(index)

    left, running = count, list[int]()
    while left or running:
        for index in [index for index in running if end[index] <= clock]:
            running.remove(index)
            returned.add(index, sum(buffer.bytes for buffer in deaths[index]))
            came(followers[index])
        busy = {steps[index].stream for index in running}
        heads = [queue[0] for stream, queue in queues.items() if queue and stream not in busy]
        begun = [*frees, *(index for index in heads if not pending[index] and has_memory(index))]
        frees.clear()
        for index in begun:
            start[index], end[index] = clock, clock + steps[index].seconds
            if steps[index].stream:
                queues[steps[index].stream].popleft()
            came(issued[index])
        left -= len(begun)
        running += begun
        if not begun and running:
            clock = min(end[index] for index in running)
        elif not begun and left:
            first = start.index(math.inf)
            raise ScheduleError(f"Step {first} waits for what never happens.", first)
    return start, end


def check_intervals(replay: Replay, start: Sequence[float], end: Sequence[float]) -> list[tuple[float, int]]:
    """Check the intervals only; return the bytes held after each event, without resident."""

    def hold(truth: bool, index: int, text: str) -> None:
        if not truth:
            raise ScheduleError(f"Step {index} starts at {start[index]}: {text}.", index)

    last: dict[str, int] = {}
    stays: dict[str, list[Buffer]] = {}  # one after the other
    for buffer in replay.buffers:
        stays.setdefault(buffer.name, []).append(buffer)
    for k, step in enumerate(replay.steps):
        hold(0 <= start[k] <= end[k] == start[k] + step.seconds, k, f"it must end {step.seconds} later")
        hold(step.issue < 0 or start[step.issue] <= start[k], k, "a run listed before it starts later")
        hold(all(end[other] <= start[k] for other in step.waits), k, "what it waits for ends later")
        if step.stream:
            hold(step.stream not in last or end[last[step.stream]] <= start[k], k, "its stream is busy")
            last[step.stream] = k
        for name in step.reads:
            here = stays[name][bisect_left(stays[name], k, key=attrgetter("born")) - 1]
            born, dies = here.born, here.dies
            hold(born < 0 or end[born] <= start[k], k, f"tensor {name!r} is not complete")
            hold(dies is None or end[k] <= end[dies], k, f"tensor {name!r} goes before its end")
    events = [(0.0 if b.born < 0 else start[b.born], b.born, 0, n) for n, b in enumerate(replay.buffers)]
    events += [(end[b.dies], b.dies, 1, n) for n, b in enumerate(replay.buffers) if b.dies is not None]
    held, curve = 0, [(0.0, 0)]
    arena = Arena()
    for moment, k, leaves, number in sorted(events):
        buffer = replay.buffers[number]
        if leaves:
            held -= buffer.bytes
            curve.append((moment, held))
            if replay.contiguous:
                arena.drop(buffer)
            continue
        hold(not replay.contiguous or arena.takes(buffer), k, f"the addresses of {buffer.name!r} are taken")
        held += buffer.bytes
        curve.append((moment, held))
        hold(held <= replay.capacity, k, f"{told(held)} are held, {told(replay.capacity)} are there")
    return curve

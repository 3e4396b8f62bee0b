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


class _Play:
    """Steps played against a clock. At every event the head of each stream, and every free, may start."""

    def __init__(self, replay: Replay, given: Sequence[float], floor: float) -> None:
        self.replay, self.steps, self.floor, self.clock = replay, replay.steps, floor, 0.0
        count = len(self.steps)
        self.given = len(given)
        self.timed = deque(sorted((moment, index) for index, moment in enumerate(given)))
        self.start, self.end = [math.inf] * count, [math.inf] * count
        births, self.returned = [0] * (count + 1), _Sums(count)  # bytes
        self.deaths: list[list[Buffer]] = [[] for _ in range(count)]
        for buffer in replay.buffers:
            births[buffer.born + 1] += buffer.bytes
            if buffer.dies is not None:
                self.deaths[buffer.dies].append(buffer)
        self.asked = list(accumulate(births))[1:]  # by all steps listed up to this one, started or not
        self.queues: dict[str, deque[int]] = {}  # one per stream, first in, first out
        self.frees = list[int]()  # frees that are ready
        self.running = list[int]()
        self.issued: list[list[int]] = [[] for _ in range(count)]  # steps that wait for the start of this one
        self.followers: list[list[int]] = [[] for _ in range(count)]  # steps that wait for the end of this one
        self.pending = [0] * count  # how many starts and ends a step waits for
        self.over, self.ended = 0, [False] * (count + 1)  # all steps before `over` have ended
        for index, (step, waits) in enumerate(zip(self.steps, _waits(replay), strict=True)):
            for other in waits:
                self.followers[other].append(index)
            if step.issue != AT_TIME_0:
                self.issued[step.issue].append(index)
            self.pending[index] = len(waits) + (step.issue != AT_TIME_0)
            if step.stream:
                self.queues.setdefault(step.stream, deque()).append(index)
            elif not self.pending[index] and index >= self.given:
                self.frees.append(index)

    def has_memory(self, index: int) -> bool:
        """Bytes of earlier steps in the list count as held, unless earlier steps have actually released them."""
        asks = not self.replay.contiguous and any(buffer.bytes for buffer in self.steps[index].births)
        # without bytes nothing waits
        return not asks or self.asked[index] - self.returned.before(index) <= self.replay.capacity

    def in_turn(self, index: int) -> bool:
        """Whether all that is listed a whole repetition before a step has ended."""
        return index - self.replay.count < self.over and self.clock >= self.floor

    def came(self, waiting: list[int]) -> None:
        for index in waiting:
            self.pending[index] -= 1
            if not self.pending[index] and not self.steps[index].stream and index >= self.given:
                self.frees.append(index)

    def finish(self) -> None:
        """End what ends now."""
        end, clock = self.end, self.clock
        for index in [index for index in self.running if end[index] <= clock]:
            self.running.remove(index)
            self.ended[index] = True
            self.returned.add(index, sum(buffer.bytes for buffer in self.deaths[index]))
            self.came(self.followers[index])
        while self.ended[self.over]:
            self.over += 1

    def ready(self) -> list[int]:
        """The steps that can start now."""
        steps, pending = self.steps, self.pending
        busy = {steps[index].stream for index in self.running}
        heads = [queue[0] for stream, queue in self.queues.items() if queue and stream not in busy]
        if not self.replay.repeated:
            found = [*self.frees, *(index for index in heads if not pending[index] and self.has_memory(index))]
            self.frees.clear()
            return found
        heads = [index for index in heads if index >= self.given and not pending[index] and self.in_turn(index)]
        found = [index for index in self.frees if self.in_turn(index)]
        found += (index for index in heads if self.has_memory(index))
        self.frees = [index for index in self.frees if not self.in_turn(index)]
        while self.timed and self.timed[0][0] <= self.clock:
            found.append(self.timed.popleft()[1])
        return found

    def play(self) -> None:
        """Start and end all steps."""
        steps, start, end, left = self.steps, self.start, self.end, len(self.steps)
        while left or self.running:
            self.finish()
            begun = self.ready()
            for index in begun:
                step = steps[index]
                start[index], end[index] = self.clock, self.clock + step.seconds
                if step.stream:
                    self.queues[step.stream].remove(index)
                self.came(self.issued[index])
            self.running += begun
            left -= len(begun)
            if begun:
                continue
            events = [end[index] for index in self.running]
            events += self.timed[0][:1] if self.timed else ()
            events += [self.floor] if self.clock < self.floor else []
            if events:
                self.clock = min(events)
            elif left:
                first = start.index(math.inf)
                raise ScheduleError(f"Step {first} waits for what never happens.", first)


def execute(replay: Replay, given: Sequence[float] = (), floor: float = 0.0) -> tuple[list[float], list[float]]:
    """Play the steps against a clock; return when each starts and ends.

    Of a list that is repeated, `given` are the starts in the first repetition; no later step starts before `floor`.
    """
    play = _Play(replay, given, floor)
    play.play()
    return play.start, play.end


def _joined(moments: Sequence[float], slack: float) -> dict[float, float]:
    """For each moment, the first of those that are at most `slack` before it, and count as the same."""
    joined, first = dict[float, float](), -math.inf
    for moment in sorted(moments):
        first = moment if moment - first > slack else first
        joined[moment] = first
    return joined


def check_intervals(
    replay: Replay, start: Sequence[float], end: Sequence[float], given: int = 0, slack: float = 0.0
) -> list[tuple[float, int, int]]:
    """Check the intervals only, but for the first `given` steps; return (time, bytes, step) after each event.

    The bytes are those held from then on, without resident. In moments that are at most `slack` apart, the order of
    the list decides: a step that waits for bytes is listed after those that release them.
    """

    def hold(truth: bool, index: int, text: str) -> None:
        if not truth and index >= given:
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
    if slack:
        joined = _joined([moment for moment, _, _, _ in events], slack)
        events = [(joined[moment], k, leaves, number) for moment, k, leaves, number in events]
    held, curve = 0, [(0.0, 0, -1)]
    arena = Arena()
    for moment, k, leaves, number in sorted(events):
        buffer = replay.buffers[number]
        if leaves:
            held -= buffer.bytes
            curve.append((moment, held, k))
            if replay.contiguous:
                arena.drop(buffer)
            continue
        hold(not replay.contiguous or arena.takes(buffer), k, f"the addresses of {buffer.name!r} are taken")
        held += buffer.bytes
        curve.append((moment, held, k))
        if held > replay.capacity:
            hold(False, k, f"{told(held)} are held, {told(replay.capacity)} are there")
    return curve

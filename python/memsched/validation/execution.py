"""The steps of a plan played against a clock, and a check of the resulting intervals alone."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from itertools import accumulate

from memsched.errors import ScheduleError
from memsched.validation.replay import AT_TIME_0, Arena, Buffer, Replay


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
        if not replay.contiguous:
            asks = any(buffer.bytes for buffer in steps[index].births)  # a step without bytes never waits
            return not asks or asked[index] - returned.before(index) <= replay.capacity
        leaving = [old for k in range(settled, index) if end[k] > clock for old in deaths[k]]
        return not any(new.overlaps(old) for new in steps[index].births for old in leaving)

    queues: dict[str, deque[int]] = {}  # one per stream, first in, first out
    frees = list[int]()  # frees that are ready
    followers: list[list[int]] = [[] for _ in range(count)]  # steps that wait for the end of this one
    pending = [len(step.waits) for step in steps]
    for index, step in enumerate(steps):
        for other in step.waits:
            followers[other].append(index)
        if step.stream:
            queues.setdefault(step.stream, deque()).append(index)
        elif not step.waits:
            frees.append(index)
    waiting, running = count, list[int]()
    settled = 0  # all steps before this one have ended
    while waiting or running:
        for index in [index for index in running if end[index] <= clock]:
            running.remove(index)
            returned.add(index, sum(buffer.bytes for buffer in deaths[index]))
            for other in followers[index]:
                pending[other] -= 1
                if not pending[other] and not steps[other].stream:
                    frees.append(other)
        while settled < count and end[settled] <= clock and settled not in running:
            settled += 1
        busy = {steps[index].stream for index in running}
        heads = [queue[0] for stream, queue in queues.items() if queue and stream not in busy]
        begun = [
            index
            for index in (*frees, *heads)
            if (steps[index].issue == AT_TIME_0 or start[steps[index].issue] < math.inf)
            and not pending[index]
            and has_memory(index)
        ]
        for index in begun:
            start[index], end[index] = clock, clock + steps[index].seconds
            if steps[index].stream:
                queues[steps[index].stream].popleft()
            else:
                frees.remove(index)
        waiting -= len(begun)
        running += begun
        if not begun and running:
            clock = min(end[index] for index in running)
        elif not begun and waiting:
            first = start.index(math.inf)
            raise ScheduleError(f"Step {first} waits for what never happens.", first)
    return start, end


def check_intervals(replay: Replay, start: Sequence[float], end: Sequence[float]) -> list[tuple[float, int]]:
    """Check the intervals only; return the bytes held after each event, without resident."""

    def hold(truth: bool, index: int, text: str) -> None:
        if not truth:
            raise ScheduleError(f"Step {index} starts at {start[index]}: {text}.", index)

    last: dict[str, int] = {}
    stays: dict[str, list[Buffer]] = {}
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
            here = [b for b in stays[name] if b.born < k and (b.dies is None or b.dies > k)]
            born, dies = here[0].born, here[0].dies
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
        hold(held <= replay.capacity, k, f"{held} bytes are held, {replay.capacity} are there")
    return curve

"""The steady state of a list of steps that is repeated without end, proved from times that need not be trusted.

The times of one repetition are a function of those of the one before. It is monotone, and later by as much as those
are later, so if it maps some times to the same times P later, then P is the period, whatever times it starts from. So
the first of three repetitions is played as given, and the next two must come out one and two periods later.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

from memsched.errors import ScheduleError
from memsched.validation.bounds import Facts
from memsched.validation.execution import check_intervals, execute
from memsched.validation.replay import Json, Replay

_ROUNDING = 1e-9  # relative to the times of one repetition
_DIGITS = 1e-14  # relative, that sums of doubles may lose


def check_steady(replay: Replay, given: Sequence[float], period: float) -> tuple[int, list[tuple[float, int]]]:
    """Check that the steps of a repetition start at the given times, and the next repetition a period later.

    Returns the peak, and the bytes after each event of one period from the first start on, both without resident.
    """
    if not all(map(math.isfinite, (*given, period))):
        raise ScheduleError("The times of the steady state are not finite; is the bandwidth too small?")
    count = replay.count
    last = max(moment + step.seconds for moment, step in zip(given, replay.steps, strict=False))
    start, end = execute(replay, given, last - period)
    slack = _ROUNDING * max(last, period)
    for k in range(count, len(start)):
        due = given[k % count] + (k // count) * period
        if abs(start[k] - due) > slack:
            text = f"{k // count} repetitions after {given[k % count]}, in periods of {period}, it starts at {start[k]}"
            raise ScheduleError(f"Step {k % count} is not in a steady state: {text}; please report this.", k % count)
    events = check_intervals(replay, start, end, count, slack)
    first = min(start[count : 2 * count])
    before = [held for moment, held, _ in events if moment <= first + slack]
    peak = max((held for _, held, k in events if k // count == 1), default=before[-1])
    within = [(moment - first, held) for moment, held, _ in events if first + slack < moment < first + period - slack]
    return max(peak, before[-1]), [(0.0, before[-1]), *within]


def bound_of_period(graph: Json, device: Json) -> float:
    """A lower bound in seconds on the period of every plan of a graph with persistent tensors.

    While an op runs on the device, what does not fit beside it is away, and comes back in each repetition if an op
    reads it there or if it is at the border. An input, a weight, or what is updated there also leaves in each. An op
    that may run on the host takes the time of the device, or of the host and of the link, in any share.
    """
    facts = Facts(graph, device)
    here = on_device(graph)
    travels, kept = travellers(graph)
    of_travels, of_kept = (sum(facts.size[name] for name in names) for names in (travels, kept))
    known = math.fsum(facts.time[op] for op in here)
    shared = sorted(set(range(len(facts.time))) - set(here))
    best = max(_shared(known, loads) for loads in _loads(graph, facts, shared, travels, bool(device.get("duplex"))))
    for op, names in ((op, facts.reads[op]) for op in here):
        unchanged = of_kept - sum(facts.size[name] for name in kept & names)
        idle = of_travels - sum(facts.size[name] for name in travels & names)
        back = max(0, facts.need[op] + idle - facts.capacity)
        out = max(0, back - unchanged)
        if facts.need[op] > facts.capacity or (back and not facts.back) or (out and not facts.out):
            return math.inf
        seconds = (back / facts.back if back else 0.0, out / facts.out if out else 0.0)
        best = max(best, max(seconds) if device.get("duplex") else sum(seconds))
    return best


def on_device(graph: Json) -> list[int]:
    """The ops that run on the device in any case."""
    return [op for op, one in enumerate(graph["ops"]) if one.get("host_time") is None]


def travellers(graph: Json) -> tuple[set[str], set[str]]:
    """What is on the device at some time of each repetition, and what of it nobody changes there.

    Empty without persistent tensors, as then nothing is repeated.
    """
    role = {tensor["name"]: tensor["role"] for tensor in graph["tensors"]}
    persistent = {name for name in role if role[name] == "persistent"}
    if not persistent:
        return set(), set()
    ops = [graph["ops"][op] for op in on_device(graph)]
    fixed = {name for name in role if role[name] in ("input", "weight")}
    read = persistent & {name for op in ops for name in op["reads"]}
    return fixed | read, read - {name for op in ops for name in op.get("updates", ())}


def _loads(
    graph: Json, facts: Facts, shared: Sequence[int], travels: set[str], duplex: bool
) -> list[list[tuple[float, float]]]:
    """For each stream but that of the device: the seconds of each op there, beside those on the device.

    On the host, an op reads copies of what was written on the device in this repetition, and what it changes comes back
    for those that read it there. Tensors that several such ops share count for none.
    """
    ops = graph["ops"]
    readers, writers = Counter[str](), Counter[str]()
    for op in ops:
        readers.update(set(op["reads"]) if op.get("host_time") is not None else ())
        writers.update(op.get("updates", ()))
    persistent = {tensor["name"] for tensor in graph["tensors"] if tensor["role"] == "persistent"}
    out, back, host = list[tuple[float, float]](), list[tuple[float, float]](), list[tuple[float, float]]()
    for number in shared:
        op, seconds = ops[number], facts.time[number]
        leaves = sum(facts.size[name] for name in set(op["reads"]) - persistent if readers[name] == 1)
        comes = sum(facts.size[name] for name in set(op["updates"]) & travels if writers[name] == 1)
        one = leaves / facts.out if leaves and facts.out else math.inf if leaves else 0.0
        other = comes / facts.back if comes and facts.back else math.inf if comes else 0.0
        out.append((seconds, one if duplex else one + other))
        back.append((seconds, other if duplex else one + other))
        host.append((seconds, float(op["host_time"])))
    return [out, back, host]


def _shared(known: float, loads: Sequence[tuple[float, float]]) -> float:
    """The least of the larger load of two streams: `known` on the first, and of each op any share on either.

    It is the largest, over a price per second of the second stream, of a sum of minima (linear programming duality).
    """
    finite = [(here, there) for here, there in loads if here > 0 and there < math.inf]
    stays = known + math.fsum(here for here, there in loads if there == math.inf)
    prices = {(0.0, 1.0): (0.0, 1.0)} | {(a / (a + b), b / (a + b)): (a, b) for a, b in finite}
    rising = sorted(prices, key=lambda one: (one[0], -one[1]))  # with what is left of 1, which may be less than a digit

    def bound(at: int) -> float:  # each is one; they increase up to the best
        price, left = rising[at]
        return math.fsum([left * stays, *(min(left * here, price * there) for here, there in finite)])

    def exact(at: int) -> Fraction:
        price, left = map(Fraction, prices[rising[at]])
        least = (min(left * Fraction(here), price * Fraction(there)) for here, there in finite)
        return sum(least, left * Fraction(stays)) / (price + left)

    def rises(at: int) -> bool:
        this, other = bound(at), bound(at + 1)
        if abs(this - other) <= _DIGITS * other:  # small numbers are lost beside large ones
            return exact(at) < exact(at + 1)
        return this < other

    low, high = 0, len(rising) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if rises(middle) else (low, middle)
    return bound(low)

"""The bound by a minimum cut, proved anew from a certificate: a maximum flow, which is checked and need not be trusted.

docs/algorithms.md has the proof.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterable
from fractions import Fraction

from memsched.validation.bounds import Facts, Json, ancestors, descendants
from memsched.validation.steady import on_device, travellers

ROUNDING = 1e-15  # relative, of a few sums and products
_MOST = sys.float_info.max
_MOST_CHANGES = 4096  # with more, it would take long to find what runs before all of them


class _Start:
    """The first start of one op: what must outlive it."""

    def __init__(self, facts: Facts, graph: Json, op: int) -> None:
        here = set(on_device(graph))
        before, after = ancestors(facts, op), descendants(facts, op) & here
        later = after | {op}
        self.before = math.fsum(facts.time[k] for k in before & here)
        self.after = math.fsum(facts.time[k] for k in later)
        # Seconds that a run at this start or later adds, by op. What is no ancestor may run for the first time then.
        self.again = [math.inf if k in later else 0.0 for k in range(len(facts.time))]
        for k in before:
            self.again[k] = math.inf if facts.once[k] else facts.time[k]
        self.most_again = math.fsum(seconds for seconds in self.again if seconds < math.inf)
        reads = facts.reads[op]
        self.needed = {
            name
            for name in facts.size
            if name not in reads and facts.writer.get(name) not in later and not after.isdisjoint(facts.readers[name])
        }
        self._travel(facts, graph, op, before & here, later)
        self.bytes = {name: 0 if name in reads else size for name, size in facts.size.items()}  # what it reads is there
        self.reads = sum(facts.size[name] for name in reads)
        own = graph["ops"][op]  # its tape can wait if the op may run again
        skips = not (own.get("once") and facts.tape_is_read(own))
        self.room: int = facts.capacity - facts.least(own, own["writes"], skips=skips)

    def _travel(self, facts: Facts, graph: Json, op: int, before: set[int], later: set[int]) -> None:
        """What comes and goes at any time of a repetition, and the bytes of it that need not do so at a certain time.

        before, later: the ops on the device that run before this start, and at it or after it.
        """
        travels, kept = (names - facts.reads[op] for names in travellers(graph))
        self.needed |= travels
        changes = {k: set(graph["ops"][k].get("updates", ())) for k in on_device(graph)}
        most = _changing(facts, changes)
        back = {name for name in travels if not later.isdisjoint(facts.readers[name])}  # before an op then reads it
        out = set[str]().union(*(changes[k] for k in before))  # after an op has changed it, and before the start
        changed = set[str]().union(*(changes[k] for k in most))  # after one of these has changed it
        self.any_time, self.unchanged, self.not_back, self.not_out, self.not_changed = (
            sum(facts.size[name] for name in travels - names)
            for names in (set[str](), travels - kept, back, out, changed)
        )
        behind = [0] * len(facts.time)  # of each op, which of those changes can only come later: bits
        every = sum(most.values()) if len(most) <= _MOST_CHANGES else 0
        for k in reversed(range(len(behind))) if every else ():
            for reader in (reader for name in facts.writes[k] for reader in facts.readers[name]):
                behind[k] |= behind[reader] | most.get(reader, 0)
        between = {k for k in later if every and behind[k] == every}  # the start and all of them
        self.quiet = math.fsum(facts.time[k] for k in between) if op in between else 0.0


def _changing(facts: Facts, changes: dict[int, set[str]]) -> dict[int, int]:
    """A bit for each op that changes something, but for those that change the least: a thousandth of it all."""
    size = {k: sum(facts.size[name] for name in names) for k, names in changes.items() if names}
    rising = sorted(size, key=lambda k: size[k])
    left = sum(some // 1000 for some in size.values())
    sums = itertools.accumulate(size[k] for k in rising)
    return {k: 1 << number for number, (k, some) in enumerate(zip(rising, sums, strict=True)) if some > left}


def bound_of_cut(graph: Json, device: Json, op: int, price: float, flows: Iterable[tuple[int, int, float]]) -> float:
    """A lower bound in seconds on every plan; infinite if the certificate proves that there is none.

    Where plans are repeated, it is one on the period.

    A flow is (-1, tensor, seconds): what the tensor pays, at most the price of its bytes; or (op, tensor, seconds):
    what this op, if it runs again, takes off the payments for that tensor. What they exceed is taken off the bound, so
    any flows give a bound that holds.
    """
    facts = Facts(graph, device)
    names = list(facts.size)
    compute = math.fsum(facts.time[k] for k in on_device(graph))
    if not (op in on_device(graph) and 0 < price < math.inf):
        return compute
    start = _Start(facts, graph, op)
    pays, taken = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
    load = [0.0] * len(facts.time)  # of each op that runs again: what its outputs pay, less what it takes off
    for reader, tensor, seconds in flows:
        name = names[tensor]
        if not 0 <= seconds < math.inf:
            return compute
        if reader < 0:
            pays[name] += seconds
            if name in facts.writer:
                load[facts.writer[name]] += seconds
        elif name in facts.reads[reader]:
            taken[name] += seconds
            load[reader] -= seconds
        else:
            return compute
    wrong = [max(0.0, pays[name] - price * start.bytes[name]) for name in names]
    wrong += [max(0.0, one - most) for one, most in zip(load, start.again, strict=True)]
    wrong += [max(0.0, taken[name] - pays[name]) for name in names if name not in start.needed]
    gains = [pays[name] - taken[name] for name in start.needed]
    least = math.fsum([*gains, price * start.reads]) - math.fsum(wrong)
    return max(compute, _seconds(start, least, price, compute, facts, device))


def _seconds(start: _Start, least: float, price: float, compute: float, facts: Facts, device: Json) -> float:
    """The least time if again + price x (bytes held on the device or the host) >= least when the op starts."""
    again = least - price * start.room - ROUNDING * (abs(least) + price * abs(start.room))
    if again <= 0:
        return compute
    # Without a way out, what nobody changes may still be on the host, and without one back nothing.
    host = math.inf if facts.out else float(start.unchanged)
    host = min(host, float(device.get("host_memory") or 0)) if device.get("host_memory") is not None else host
    host = host if facts.back else 0.0
    if (again - start.most_again) / price > host * (1 + 1e-9) + 0.5:
        return math.inf
    if host == 0:
        return compute + again
    out, back = (Fraction(min(1 / rate, _MOST)) if rate else Fraction(0) for rate in (facts.out, facts.back))
    all_, more, cost = Fraction(compute), Fraction(again), Fraction(price)
    after, before = Fraction(start.after), Fraction(start.before)
    # Of the bytes on the host: all must hold, so the least of the largest. What may travel at any time does not lie
    # between other ops, but it loads the link, and so does what was changed.
    lines = [
        (all_, Fraction(0)),
        (all_ + more, -cost),
        (after + more - out * start.not_out, out - cost),
        (after - out * start.not_out, out),
        (before - back * start.not_back, back),
        (-(out + back) * start.any_time, out + back),
        (Fraction(0), back),
        (-out * start.unchanged, out),
        (Fraction(start.quiet) - out * start.not_changed, out),
        (-out * start.unchanged, out if device.get("duplex") else out + back),
    ]
    ends = [Fraction(0), *([] if math.isinf(host) else [Fraction(host)])]
    crossings = ((b - a) / (m - n) for (a, m), (b, n) in itertools.combinations(lines, 2) if m != n)
    moments = [*ends, *(h for h in crossings if h > 0 and h <= host)]
    least_time = min(max(at + slope * h for at, slope in lines) for h in moments)
    return max(compute, float(least_time * (1 - Fraction(ROUNDING)))) if least_time < _MOST else math.inf

"""Before the integer program: an order to start from, and precedences that every better order keeps."""

from __future__ import annotations

import time

from memsched.arena.ilp.model import check_time
from memsched.arena.ilp.net import INPUT, Item, Net, Reach, bits

WIDTH = 64  # of the beam, up to SMALL ops
SMALL = 64
NARROW = 16  # and above


def beam_order(net: Net, until: float) -> list[int]:
    """The better of the listed order and that of a beam search over sets of ops, ranked by peak, then bytes alive."""
    listed = list(range(net.count))
    width = WIDTH if net.count <= SMALL else NARROW
    read: list[list[Item]] = [[] for _ in listed]
    for item in net.items:
        for op in () if item.kept else item.readers:
            read[op].append(item)
    masks = {id(item): sum(1 << op for op in item.readers) for item in net.items}
    start = net.always + sum(item.size for item in net.items if item.source == INPUT)
    beam: list[tuple[int, int, int, tuple[int, ...]]] = [(start, start, 0, ())]  # peak, alive, done, order
    for _ in range(net.count):
        found: dict[int, tuple[int, int, int, tuple[int, ...]]] = {}
        for peak, alive, done, order in beam:
            check_time(until)
            for op in range(net.count):
                if done >> op & 1 or net.reach.before[op] & ~done:
                    continue
                grown = done | 1 << op
                now = alive + net.made[op]
                left = now - sum(item.size for item in read[op] if not masks[id(item)] & ~grown)
                state = (max(peak, now + net.scratch[op]), left, grown, (*order, op))
                if grown not in found or state < found[grown]:
                    found[grown] = state
        beam = sorted(found.values())[:width]
    best = list(beam[0][3])
    return best if net.peak(best) < net.peak(listed) else listed


def probed_bound(net: Net, low: int, high: int, unit: int, until: float) -> int:
    """The least limit from `low` to `high`, in units, that `probe` does not refute."""
    steps = (high - low) // unit
    above, most = 0, steps  # this many units above `low` are a bound
    while above < most and time.monotonic() <= until:
        middle = (above + most) // 2
        if probe(net, low + middle * unit, until) is None:
            above = middle + 1
        else:
            most = middle
    return low + above * unit


def probe(net: Net, limit: int, until: float) -> Reach | None:
    """The precedences of every order whose peak is within `limit`; None if there is no such order.

    Of two ops one runs first. If that alone makes some op exceed the limit, the other one runs first. If time runs
    out, the precedences found so far.
    """
    reach = net.reach.copy()
    if max(net.needs(reach), default=net.always) > limit:
        return None
    changed = True
    while changed:
        changed = False
        made, wanted = net.masks(reach)
        for u in range(net.count):
            for v in range(u + 1, net.count):
                if time.monotonic() > until:
                    return reach
                if (reach.before[u] | reach.after[u]) >> v & 1:
                    continue
                ways = [_fits(net, reach, made, wanted, edge, limit) for edge in ((u, v), (v, u))]
                if ways == [False, False]:
                    return None
                if ways != [True, True]:
                    reach.add(*((u, v) if ways[0] else (v, u)))
                    changed = True
    return reach


def _fits(net: Net, reach: Reach, made: list[int], wanted: list[int], edge: tuple[int, int], limit: int) -> bool:
    """Whether all ops stay within the limit if the first op of the edge runs before the second."""
    first, second = edge

    def within(op: int, alive: int) -> bool:
        return net.always + net.scratch[op] + sum(net.items[k].size for k in bits(alive)) <= limit

    return all(
        within(op, made[op] & (wanted[op] | wanted[second])) for op in bits(reach.before[first] | 1 << first)
    ) and all(within(op, (made[op] | made[first]) & wanted[op]) for op in bits(reach.after[second] | 1 << second))

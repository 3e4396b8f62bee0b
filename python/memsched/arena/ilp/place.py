"""OLLA's addresses (Steiner et al., 2022): equations 6 to 8 and 15, solved by HiGHS."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress

from memsched.arena.buffers import Buffer, height
from memsched.arena.ilp.model import Model, Scale, TimeUpError, left, load, until_after
from memsched.arena.search import above_capacity, columns_of, place_columns


def place_ilp(
    buffers: Sequence[Buffer], capacity: int | None = None, time_limit: float | None = None
) -> tuple[list[int], int, bool]:
    """Find addresses for buffers with known lifetimes, so that the highest end is as low as possible.

    A greedy placement comes first. If it is higher than its bound, the integer program looks for a lower one. Sizes
    are scaled as in `order_ilp`. A buffer without bytes or time is put at its offset or at 0; it counts for the height
    but conflicts with none. After `time_limit` seconds the best placement so far is returned.

    Returns offsets; a bound, below which no placement ends; and whether this one ends there. InfeasibleError: it needs
    more than the capacity; min_memory is the height found.
    InvalidInputError: fixed buffers overlap or are not aligned.
    """
    load()
    until = until_after(time_limit)
    offsets, top, bound = place_columns(columns_of(buffers), None, time_limit=left(until), method="greedy")
    if top > bound:
        with suppress(TimeUpError):
            offsets, bound = _by_program(buffers, offsets, bound, until)
    top = height(buffers, offsets)
    if capacity is not None and top > capacity:
        raise above_capacity(top, bound, capacity)
    return offsets, bound, top == bound


def _by_program(buffers: Sequence[Buffer], best: list[int], bound: int, until: float) -> tuple[list[int], int]:
    """(offsets, lower bound), given a placement and a bound."""
    top = height(buffers, best)
    unit, plain = unit_of(buffers)
    scale = Scale.of([unit], top)
    model = Model(until)
    limit = top - unit
    highest = model.variable(scale.down(bound), scale.down(limit), cost=1.0, integer=scale.whole)
    live = [k for k, one in enumerate(buffers) if is_live(one)]
    addresses = {k: address_of(model, scale, buffers[k], limit, plain) for k in live}
    common = 1 if plain else math.gcd(*(buffers[k].alignment for k in live))
    pairs = []
    for pair in meeting(buffers):
        model.check_time()
        pairs.append(pair)
    mirrored = plain and all(buffers[k].offset is None for k in live)
    for k in live:
        model.row(scale.down(buffers[k].size), float("inf"), [(highest, 1.0), (addresses[k], -1.0)])
    for i, j in sorted(pairs, key=lambda pair: (-buffers[pair[0]].size * buffers[pair[1]].size, pair)):
        if buffers[i].offset is not None and buffers[j].offset is not None:
            continue
        below = model.variable(1 if mirrored else 0, 1, integer=True)  # by mirror symmetry, the first pair may be fixed
        mirrored = False
        for low, high, factor, constant in ((i, j, 1.0, 0.0), (j, i, -1.0, 1.0)):
            padded = -(-buffers[low].size // common) * common
            apart(
                model, scale, (addresses[low], padded, addresses[high]), ([(below, factor)], constant), limit + common
            )
    outcome = model.solve(time_limit=left(until), gap=scale.gap)
    if outcome.infeasible:
        return best, max(bound, min(scale.bound(scale.down(top)), top))
    if outcome.values is not None:
        found = settle(buffers, [outcome.values[addresses[k]] if k in addresses else 0.0 for k in range(len(buffers))])
        if found is not None and height(buffers, found) < top:
            best, top = found, height(buffers, found)
    assert overlap(buffers, best) is None
    return best, max(bound, min(scale.bound(outcome.bound), top))


def address_of(model: Model, scale: Scale, one: Buffer, limit: int, plain: bool) -> int:
    """A variable for an address, in HiGHS's bytes: fixed, or a multiple of the alignment.

    If the scale is not whole, multiples are finer than doubles and HiGHS might find none. Then any address is allowed:
    this can only lower the bound, and `settle` aligns the result.
    """
    if one.offset is not None:
        return model.variable(scale.down(one.offset), scale.down(one.offset))
    address = model.variable(0, scale.down(limit - one.size))
    if not plain and scale.whole:
        multiple = model.variable(0, (limit - one.size) // one.alignment, integer=True)
        model.row(0, 0, [(address, 1.0), (multiple, -scale.down(one.alignment))])
    return address


def apart(
    model: Model, scale: Scale, ends: tuple[int, int, int], below: tuple[list[tuple[int, float]], float], limit: int
) -> None:
    """Equation 7: if `below` (terms and a constant) is 1, then address + size <= the other address."""
    low, size, high = ends
    terms, constant = below
    slack = scale.down(limit)
    row = [(low, 1.0), (high, -1.0), *((variable, slack * factor) for variable, factor in terms)]
    model.row(-float("inf"), slack * (1 - constant) - scale.down(size), row)


def is_live(one: Buffer) -> bool:
    """Whether it takes room at some time."""
    return one.size > 0 and one.end > one.start


def meeting(buffers: Sequence[Buffer]) -> Iterator[tuple[int, int]]:
    """The pairs (i, j), i < j, of buffers that are both in use at some time."""
    alive: list[int] = []
    for k in sorted((k for k, one in enumerate(buffers) if is_live(one)), key=lambda k: buffers[k].start):
        alive = [other for other in alive if buffers[other].end > buffers[k].start]
        yield from ((min(k, other), max(k, other)) for other in alive)
        alive.append(k)


def overlap(buffers: Sequence[Buffer], offsets: Sequence[int]) -> tuple[int, int] | None:
    """Two buffers that are in use at the same time and address, or None."""
    for i, j in meeting(buffers):
        if offsets[i] < offsets[j] + buffers[j].size and offsets[j] < offsets[i] + buffers[i].size:
            return i, j
    return None


def settle(buffers: Sequence[Buffer], addresses: Sequence[float]) -> list[int] | None:
    """Whole addresses: each buffer as low as those with lower `addresses` allow. None if they overlap."""
    offsets = [0] * len(buffers)
    beside: list[list[int]] = [[] for _ in buffers]
    for i, j in meeting(buffers):
        first, second = (i, j) if (addresses[i], i) < (addresses[j], j) else (j, i)
        beside[second].append(first)
    for k in sorted(range(len(buffers)), key=lambda k: (addresses[k], k)):
        one, low = buffers[k], max((offsets[j] + buffers[j].size for j in beside[k]), default=0)
        offsets[k] = -(-low // one.alignment) * one.alignment if one.offset is None else one.offset
    return offsets if overlap(buffers, offsets) is None else None


def unit_of(buffers: Sequence[Buffer]) -> tuple[int, bool]:
    """(unit, whether alignments can be ignored): some lowest placement has only multiples of the unit."""
    live = [one for one in buffers if is_live(one)]
    unit = math.gcd(*(one.size for one in live), *(one.offset or 0 for one in live))
    if all(unit % one.alignment == 0 for one in live):
        return max(unit, 1), True
    return math.gcd(unit, *(one.alignment for one in live)), False

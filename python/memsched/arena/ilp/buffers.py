"""Buffers in the integer programs: which ones overlap in time, how much they need, and valid addresses."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from memsched.arena.buffers import Buffer, height
from memsched.errors import InvalidInputError


def is_live(one: Buffer) -> bool:
    """Whether it takes room at some time."""
    return one.size > 0 and one.end > one.start


def meet(one: Buffer, other: Buffer) -> bool:
    """Whether both are in use at some time."""
    return is_live(one) and is_live(other) and one.start < other.end and other.start < one.end


def load(buffers: Sequence[Buffer]) -> int:
    """A lower bound on the height: the most bytes in use at once, or the highest end of a fixed buffer."""
    live = [one for one in buffers if is_live(one)]
    fixed = [one.offset + one.size for one in live if one.offset is not None]
    return max([0, *fixed, *(sum(two.size for two in live if two.start <= one.start < two.end) for one in live)])


def overlap(buffers: Sequence[Buffer], offsets: Sequence[int]) -> tuple[int, int] | None:
    """Two buffers that are in use at the same time and address, or None."""
    for i, one in enumerate(buffers):
        for j, other in enumerate(buffers[:i]):
            if meet(one, other) and offsets[i] < offsets[j] + other.size and offsets[j] < offsets[i] + one.size:
                return j, i
    return None


def check_fixed(buffers: Sequence[Buffer]) -> None:
    """Raise if fixed buffers overlap or are not aligned."""
    fixed = [k for k, one in enumerate(buffers) if one.offset is not None and is_live(one)]
    offsets = [buffers[k].offset or 0 for k in fixed]
    for k, offset in zip(fixed, offsets, strict=True):
        if offset < 0 or offset % buffers[k].alignment:
            raise InvalidInputError(
                f"buffers[{k}].offset is {offset}; it must be a multiple of the alignment, {buffers[k].alignment}"
            )
    pair = overlap([buffers[k] for k in fixed], offsets)
    if pair is not None:
        i, j = (fixed[k] for k in pair)
        raise InvalidInputError(
            f"buffers[{i}] and buffers[{j}] overlap at their fixed offsets, {buffers[i].offset} and {buffers[j].offset}"
        )


def lowest_fit(buffers: Sequence[Buffer], order: Sequence[int]) -> list[int]:
    """Place the fixed buffers, then the others in this order, each at the lowest free address."""
    offsets = [one.offset or 0 for one in buffers]
    placed = [k for k, one in enumerate(buffers) if one.offset is not None and is_live(one)]
    for k in order:
        one = buffers[k]
        if one.offset is not None or not is_live(one):
            continue
        address = 0
        for other in sorted((j for j in placed if meet(one, buffers[j])), key=lambda j: offsets[j]):
            if address + one.size <= offsets[other]:
                break
            address = max(address, aligned(offsets[other] + buffers[other].size, one.alignment))
        offsets[k] = address
        placed.append(k)
    return offsets


def greedy(buffers: Sequence[Buffer]) -> list[int]:
    """The lowest placement by `lowest_fit` over a few orders: by size, area, duration and start."""
    keys: list[Callable[[Buffer], tuple[float, float]]] = [
        lambda one: (-one.size, -(one.end - one.start)),
        lambda one: (-one.size * (one.end - one.start), -one.size),
        lambda one: (-(one.end - one.start), -one.size),
        lambda one: (one.start, -one.size),
        lambda one: (-one.end, -one.size),
    ]
    found = [lowest_fit(buffers, sorted(range(len(buffers)), key=lambda k: (*key(buffers[k]), k))) for key in keys]
    return min(found, key=lambda offsets: height(buffers, offsets))


def settle(buffers: Sequence[Buffer], addresses: Sequence[float]) -> list[int] | None:
    """Whole addresses: each buffer as low as those with lower `addresses` allow. None if they overlap."""
    offsets = [0] * len(buffers)
    done: list[int] = []
    for k in sorted(range(len(buffers)), key=lambda k: (addresses[k], k)):
        one = buffers[k]
        ends = [offsets[j] + buffers[j].size for j in done if meet(one, buffers[j])]
        offsets[k] = aligned(max(ends, default=0), one.alignment) if one.offset is None else one.offset
        done.append(k)
    return offsets if overlap(buffers, offsets) is None else None


def unit_of(buffers: Sequence[Buffer]) -> tuple[int, bool]:
    """(unit, whether alignments can be ignored): some lowest placement has only multiples of the unit."""
    live = [one for one in buffers if is_live(one)]
    unit = math.gcd(*(one.size for one in live), *(one.offset or 0 for one in live))
    if all(unit % one.alignment == 0 for one in live):
        return max(unit, 1), True
    return math.gcd(unit, *(one.alignment for one in live)), False


def aligned(address: int, alignment: int) -> int:
    """The first multiple of the alignment from an address on."""
    return -(-address // alignment) * alignment

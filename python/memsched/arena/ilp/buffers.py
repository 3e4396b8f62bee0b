"""Buffers in the integer programs: which ones overlap in time, how much they need, and valid addresses."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate

from memsched.arena.buffers import Buffer
from memsched.errors import InvalidInputError


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


def load(buffers: Sequence[Buffer]) -> int:
    """A lower bound on the height: the most bytes in use at once, or the highest end of a fixed buffer."""
    live = [one for one in buffers if is_live(one)]
    fixed = [one.offset + one.size for one in live if one.offset is not None]
    changes = sorted(change for one in live for change in ((one.start, one.size), (one.end, -one.size)))
    return max([0, *fixed, *accumulate(size for _, size in changes)])


def overlap(buffers: Sequence[Buffer], offsets: Sequence[int]) -> tuple[int, int] | None:
    """Two buffers that are in use at the same time and address, or None."""
    for i, j in meeting(buffers):
        if offsets[i] < offsets[j] + buffers[j].size and offsets[j] < offsets[i] + buffers[i].size:
            return i, j
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

"""The least height of a few small buffers, by trying every offset."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, count

from memsched import Buffer


def least_height(buffers: Sequence[Buffer]) -> int:
    """Exact, for up to about eight buffers of a few bytes: every multiple of every alignment below every height."""
    still = [one for one in buffers if one.size == 0 or one.start == one.end]
    alive = [one for one in buffers if one.size > 0 and one.start < one.end]
    alive.sort(key=lambda one: (one.offset is None, -one.size * one.alignment))
    highest = [(one.offset or 0) + one.size for one in (*still, *alive)]
    return next(height for height in count(max(highest, default=0)) if _fits(alive, [], height))


def _fits(buffers: Sequence[Buffer], offsets: list[int], height: int) -> bool:
    """Whether those behind the first len(offsets) have room below the height, where these lie."""
    if len(offsets) == len(buffers):
        return True
    one = buffers[len(offsets)]
    near = [
        (offset, offset + other.size)
        for offset, other in zip(offsets, buffers, strict=False)
        if one.start < other.end and other.start < one.end
    ]
    every = range(0, height - one.size + 1, one.alignment) if one.offset is None else [one.offset]
    return any(
        all(offset >= top or offset + one.size <= low for low, top in near)
        and _fits(buffers, [*offsets, offset], height)
        for offset in every
    )


def clear(buffers: Sequence[Buffer], offsets: Sequence[int]) -> bool:
    """No two share a byte while both are alive."""
    return all(
        a.end <= b.start or b.end <= a.start or x + a.size <= y or y + b.size <= x
        for (a, x), (b, y) in combinations(list(zip(buffers, offsets, strict=True)), 2)
    )

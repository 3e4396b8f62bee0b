"""OLLA's placement of activations before the rest (function 5): each one above the one that outlives it."""

from __future__ import annotations

from collections.abc import Sequence

from memsched.arena.buffers import Buffer
from memsched.arena.ilp.buffers import aligned, is_live


def pyramid(buffers: Sequence[Buffer]) -> list[Buffer]:
    """Fix the longest-lived buffer at the bottom, on it the longest of those within its lifetime, and so on.

    The first one lies above the fixed buffers, if there are any.
    """
    placed = list(buffers)
    base = max([0, *(one.offset + one.size for one in buffers if one.offset is not None and is_live(one))])
    inside = [k for k, one in enumerate(buffers) if one.offset is None and is_live(one)]
    while inside:
        best = max(inside, key=lambda k: (buffers[k].end - buffers[k].start, -k))
        one = buffers[best]
        offset = aligned(base, one.alignment)
        placed[best] = Buffer(one.start, one.end, one.size, one.alignment, offset)
        base = offset + one.size
        inside = [k for k in inside if k != best and one.start <= buffers[k].start and buffers[k].end <= one.end]
    return placed

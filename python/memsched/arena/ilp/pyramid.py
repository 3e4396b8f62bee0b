"""OLLA's placement of activations before the rest (function 5): each one above the one that outlives it."""

from __future__ import annotations

from collections.abc import Sequence

from memsched.arena.ilp.blocks import Block, Lifetime, is_live


def pyramid(blocks: Sequence[Lifetime]) -> list[Lifetime]:
    """Fix the longest-lived block at the bottom, on it the longest of those within its lifetime, and so on.

    The first one lies above the fixed blocks, if there are any.
    """
    placed = list(blocks)
    base = max([0, *(one.offset + one.size for one in blocks if one.offset is not None and is_live(one))])
    inside = [k for k, one in enumerate(blocks) if one.offset is None and is_live(one)]
    while inside:
        best = max(inside, key=lambda k: (blocks[k].end - blocks[k].start, -k))
        one = blocks[best]
        offset = -(-base // one.alignment) * one.alignment
        placed[best] = Block(start=one.start, end=one.end, size=one.size, alignment=one.alignment, offset=offset)
        base = offset + one.size
        inside = [k for k in inside if k != best and one.start <= blocks[k].start and blocks[k].end <= one.end]
    return placed

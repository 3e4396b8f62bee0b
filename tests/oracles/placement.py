"""The least height of a few buffers, by trying everything."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from memsched import Buffer


def least_height(buffers: Sequence[Buffer]) -> int:
    """Exact, for up to about six buffers.

    Push every buffer of a best placement down as far as it goes: then it lies on the ground, or, rounded up to its
    alignment, on a fixed one or on one that was pushed down before. So each offset is found by starting from the
    ground or from the top of a fixed buffer and stacking some of the others, one on the next; all of these are tried.
    """
    alive = [buffer for buffer in buffers if buffer.size > 0 and buffer.start < buffer.end]
    tops: set[int] = {0} | {buffer.offset + buffer.size for buffer in alive if buffer.offset is not None}
    free = [buffer for buffer in alive if buffer.offset is None]
    reached = {(frozenset[int](), top) for top in tops}
    frontier = reached
    while frontier:
        frontier = {
            (used | {k}, -(-top // free[k].alignment) * free[k].alignment + free[k].size)
            for used, top in frontier
            for k in range(len(free))
            if k not in used
        } - reached
        reached |= frontier
    grounds = sorted({top for _, top in reached})
    choices = [
        [buffer.offset]
        if buffer.offset is not None
        else sorted({-(-top // buffer.alignment) * buffer.alignment for top in grounds})
        for buffer in alive
    ]
    best = [sum(buffer.size + buffer.alignment for buffer in alive) + max(tops)]

    def go_on(offsets: list[int], height: int) -> None:
        if height >= best[0]:
            return
        k = len(offsets)
        if k == len(alive):
            best[0] = height
            return
        for offset in choices[k]:
            if clear(alive[: k + 1], [*offsets, offset]):
                go_on([*offsets, offset], max(height, offset + alive[k].size))

    go_on([], 0)
    return best[0]


def clear(buffers: Sequence[Buffer], offsets: Sequence[int]) -> bool:
    """No two share a byte while both are alive."""
    return all(
        a.end <= b.start or b.end <= a.start or x + a.size <= y or y + b.size <= x
        for (a, x), (b, y) in combinations(list(zip(buffers, offsets, strict=True)), 2)
    )

"""PyTorch's caching allocator of CUDA memory, emulated: the policy without the memory.

After c10/cuda/CUDACachingAllocator.cpp with its default settings, one stream, and memory enough, so that nothing that
was reserved is ever given back; or with expandable_segments, an option that later versions of PyTorch have.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from bench.papers.olla2022_orders import Lifetime

__all__ = ["CachingAllocator", "Trace", "largest_first", "replay"]

MIB = 2**20
BLOCK = 512  # every size is a multiple of it
SMALL = MIB  # the largest request that comes out of the pool for small ones
SMALL_SEGMENT = 2 * MIB
LARGE_SEGMENT = 20 * MIB  # reserved for requests below LARGE; those above reserve what they need
LARGE = 10 * MIB
ROUND_LARGE = 2 * MIB


@dataclass(slots=True, kw_only=True, eq=False)
class _Block:
    address: int
    bytes: int
    small: bool
    requested: int = 0
    free: bool = True
    left: _Block | None = None
    right: _Block | None = None


@dataclass(slots=True, kw_only=True)
class CachingAllocator:
    """Addresses count up from 0; segments lie one after the other and never join.

    Attributes
    ----------
    expandable : bool
        Whether each pool is one segment, which grows at its end.
    reserved, allocated, requested : int
        Bytes of all segments; of the blocks in use; of what was asked for in them.
    """

    expandable: bool = False
    reserved: int = 0
    allocated: int = 0
    requested: int = 0
    _pools: dict[bool, list[tuple[int, int, _Block]]] = field(default_factory=lambda: {True: [], False: []})
    _ends: dict[bool, _Block] = field(default_factory=dict)  # the last block of each pool that is one segment

    def malloc(self, count: int) -> _Block:
        """The smallest free block that is large enough, or a new segment; what is left over is split off."""
        rounded = max(BLOCK, -(-count // BLOCK) * BLOCK)
        small = rounded <= SMALL
        pool = self._pools[small]
        index = bisect.bisect_left(pool, (rounded, -1), key=lambda entry: entry[:2])
        block = pool.pop(index)[2] if index < len(pool) else self._segment(rounded, small)
        rest = block.bytes - rounded
        if rest >= BLOCK if small or self.expandable else rest > SMALL:
            other = _Block(address=block.address + rounded, bytes=rest, small=small, left=block, right=block.right)
            if block.right is not None:
                block.right.left = other
            block.right, block.bytes = other, rounded
            self._keep(other)
        block.free, block.requested = False, count
        self.allocated += block.bytes
        self.requested += count
        return block

    def free(self, block: _Block) -> None:
        """Join the block with its free neighbours."""
        self.allocated -= block.bytes
        self.requested -= block.requested
        left, right = block.left, block.right
        if left is not None and left.free:
            self._forget(left)
            left.bytes += block.bytes
            left.right, block = right, left
            if right is not None:
                right.left = block
        if right is not None and right.free:
            self._forget(right)
            block.bytes += right.bytes
            block.right = right.right
            if right.right is not None:
                right.right.left = block
        block.free = True
        self._keep(block)

    def _segment(self, rounded: int, small: bool) -> _Block:
        if self.expandable:
            return self._grown(rounded, small)
        count = (
            SMALL_SEGMENT if small else LARGE_SEGMENT if rounded < LARGE else -(-rounded // ROUND_LARGE) * ROUND_LARGE
        )
        self.reserved += count
        return _Block(address=self.reserved - count, bytes=count, small=small)

    def _grown(self, rounded: int, small: bool) -> _Block:
        page, end = SMALL_SEGMENT if small else LARGE_SEGMENT, self._ends.get(small)
        if end is not None and end.free:
            self._forget(end)
        else:
            address = 0 if end is None else end.address + end.bytes
            end = _Block(address=address, bytes=0, small=small, left=end)
            if end.left is not None:
                end.left.right = end
        more = -(-(rounded - end.bytes) // page) * page
        end.bytes += more
        self.reserved += more
        self._ends[small] = end
        return end

    def _keep(self, block: _Block) -> None:
        bisect.insort(self._pools[block.small], (block.bytes, block.address, block), key=lambda entry: entry[:2])
        if block.right is None:
            self._ends[block.small] = block

    def _forget(self, block: _Block) -> None:
        pool = self._pools[block.small]
        del pool[bisect.bisect_left(pool, (block.bytes, block.address), key=lambda entry: entry[:2])]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What a step does to the allocator.

    Attributes
    ----------
    reserved : int
        Bytes of all segments in the end, the paper's MR at its peak.
    resident_set : int
        Bytes in use when the reserved ones first were as many, the paper's RS.
    peak : int
        The most bytes in use.
    """

    reserved: int
    resident_set: int
    peak: int

    @property
    def fragmentation(self) -> float:
        """The paper's measure: (MR - RS) / MR when MR is first at its peak."""
        return (self.reserved - self.resident_set) / self.reserved

    @property
    def overhead(self) -> float:
        """(MR - peak) / MR: the share that no placement of the same tensors would need."""
        return (self.reserved - self.peak) / self.reserved


def replay(
    resident: Iterable[int], lifetimes: Sequence[Lifetime], *, steps: int = 5, expandable: bool = False
) -> Trace:
    """Training steps on a fresh allocator, after what stays for good is allocated.

    Parameters
    ----------
    resident : iterable of int
        Bytes of each parameter, buffer and state of the optimiser.
    lifetimes : sequence of Lifetime
        What one step allocates; what ends before a position is free before what starts there is allocated.
    steps : int
    expandable : bool
        As in `CachingAllocator`.
    """
    allocator = CachingAllocator(expandable=expandable)
    for count in resident:
        allocator.malloc(count)
    reserved, resident_set, peak = allocator.reserved, allocator.requested, allocator.requested
    length = max((one.end for one in lifetimes), default=0)
    starts: list[list[int]] = [[] for _ in range(length + 1)]
    ends: list[list[int]] = [[] for _ in range(length + 1)]
    for index, one in enumerate(lifetimes):
        starts[one.start].append(index)
        ends[one.end].append(index)
    for _ in range(steps):
        held: dict[int, _Block] = {}
        for position in range(length + 1):
            for index in ends[position]:
                allocator.free(held.pop(index))
            for index in starts[position]:
                held[index] = allocator.malloc(lifetimes[index].bytes)
            peak = max(peak, allocator.requested)
            if allocator.reserved > reserved:
                reserved, resident_set = allocator.reserved, allocator.requested
    return Trace(reserved=reserved, resident_set=resident_set, peak=peak)


def largest_first(lifetimes: Sequence[Lifetime]) -> list[int]:
    """Offsets as many runtimes choose them: the largest buffer first, each as low as it fits."""
    starts, ends, sizes = (np.array([getattr(one, key) for one in lifetimes]) for key in ("start", "end", "bytes"))
    offsets = np.full(len(lifetimes), -1)
    for index in sorted(range(len(lifetimes)), key=lambda k: (-lifetimes[k].bytes, lifetimes[k].start)):
        beside = (offsets >= 0) & (starts < ends[index]) & (ends > starts[index])
        order = np.argsort(offsets[beside], kind="stable")
        lows = offsets[beside][order]
        highs = np.maximum.accumulate(np.concatenate([[0], (lows + sizes[beside][order])]))
        room = np.flatnonzero(lows - highs[:-1] >= sizes[index])
        offsets[index] = highs[room[0]] if len(room) else highs[-1]
    return [int(offset) for offset in offsets]

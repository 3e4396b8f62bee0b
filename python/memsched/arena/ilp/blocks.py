"""Blocks of memory with a lifetime: which ones meet, how much they need, and addresses that do not overlap."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from memsched.errors import InvalidInputError


class Lifetime(Protocol):
    """`size` bytes that are in use in [start, end), at a multiple of `alignment`, or at `offset` if that is given."""

    @property
    def start(self) -> float: ...
    @property
    def end(self) -> float: ...
    @property
    def size(self) -> int: ...
    @property
    def alignment(self) -> int: ...
    @property
    def offset(self) -> int | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A lifetime of our own."""

    start: float
    end: float
    size: int
    alignment: int = 1
    offset: int | None = None


def is_live(one: Lifetime) -> bool:
    """Whether it takes room at any time."""
    return one.size > 0 and one.end > one.start


def meet(one: Lifetime, other: Lifetime) -> bool:
    """Whether both are in use at some time."""
    return is_live(one) and is_live(other) and one.start < other.end and other.start < one.end


def load(blocks: Sequence[Lifetime]) -> int:
    """Bytes that are in use at the worst time: a lower bound on the height; so are the ends of the fixed ones."""
    live = [one for one in blocks if is_live(one)]
    fixed = [one.offset + one.size for one in live if one.offset is not None]
    return max(
        [0, *fixed, *(sum(two.size for two in live if two.start <= one.start < two.end) for one in live)],
    )


def height(blocks: Sequence[Lifetime], offsets: Sequence[int]) -> int:
    """Bytes from address 0 to the end of the highest block."""
    return max([0, *(offset + one.size for one, offset in zip(blocks, offsets, strict=True))])


def overlap(blocks: Sequence[Lifetime], offsets: Sequence[int]) -> tuple[int, int] | None:
    """Two blocks that are in use at the same time and address."""
    for i, one in enumerate(blocks):
        for j, other in enumerate(blocks[:i]):
            if meet(one, other) and offsets[i] < offsets[j] + other.size and offsets[j] < offsets[i] + one.size:
                return j, i
    return None


def check_fixed(blocks: Sequence[Lifetime]) -> None:
    """Raise if fixed blocks overlap or are not aligned."""
    fixed = [k for k, one in enumerate(blocks) if one.offset is not None and is_live(one)]
    offsets = [blocks[k].offset or 0 for k in fixed]
    for k, offset in zip(fixed, offsets, strict=True):
        if offset < 0 or offset % blocks[k].alignment:
            raise InvalidInputError(
                f"buffers[{k}].offset is {offset}; it must be a multiple of the alignment, {blocks[k].alignment}"
            )
    pair = overlap([blocks[k] for k in fixed], offsets)
    if pair is not None:
        i, j = (fixed[k] for k in pair)
        raise InvalidInputError(
            f"buffers[{i}] and buffers[{j}] overlap at their fixed offsets, {blocks[i].offset} and {blocks[j].offset}"
        )


def lowest_fit(blocks: Sequence[Lifetime], order: Sequence[int]) -> list[int]:
    """Place the fixed blocks, then the others in this order at the lowest address that is free."""
    offsets = [one.offset or 0 for one in blocks]
    placed = [k for k, one in enumerate(blocks) if one.offset is not None and is_live(one)]
    for k in order:
        one = blocks[k]
        if one.offset is not None or not is_live(one):
            continue
        address = 0
        for other in sorted((j for j in placed if meet(one, blocks[j])), key=lambda j: offsets[j]):
            if address + one.size <= offsets[other]:
                break
            address = max(address, _aligned(offsets[other] + blocks[other].size, one.alignment))
        offsets[k] = address
        placed.append(k)
    return offsets


def greedy(blocks: Sequence[Lifetime]) -> list[int]:
    """The lowest of what `lowest_fit` gives for some orders: by size, area, duration and start."""
    keys: list[Callable[[Lifetime], tuple[float, float]]] = [
        lambda one: (-one.size, -(one.end - one.start)),
        lambda one: (-one.size * (one.end - one.start), -one.size),
        lambda one: (-(one.end - one.start), -one.size),
        lambda one: (one.start, -one.size),
        lambda one: (-one.end, -one.size),
    ]
    found = [lowest_fit(blocks, sorted(range(len(blocks)), key=lambda k: (*key(blocks[k]), k))) for key in keys]
    return min(found, key=lambda offsets: height(blocks, offsets))


def settle(blocks: Sequence[Lifetime], addresses: Sequence[float]) -> list[int] | None:
    """Whole addresses, each block as low as the blocks allow that have lower ones here; None: they overlap."""
    offsets = [0] * len(blocks)
    done: list[int] = []
    for k in sorted(range(len(blocks)), key=lambda k: (addresses[k], k)):
        one = blocks[k]
        ends = [offsets[j] + blocks[j].size for j in done if meet(one, blocks[j])]
        offsets[k] = _aligned(max(ends, default=0), one.alignment) if one.offset is None else one.offset
        done.append(k)
    return offsets if overlap(blocks, offsets) is None else None


def step(blocks: Sequence[Lifetime]) -> tuple[int, bool]:
    """(unit, whether alignments can be forgotten): a lowest placement has addresses and a height in multiples of it."""
    live = [one for one in blocks if is_live(one)]
    unit = math.gcd(*(one.size for one in live), *(one.offset or 0 for one in live))
    if all(unit % one.alignment == 0 for one in live):
        return max(unit, 1), True
    return math.gcd(unit, *(one.alignment for one in live)), False


def _aligned(address: int, alignment: int) -> int:
    return -(-address // alignment) * alignment

"""Check placements independently of how they were made, in plain Python."""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Any

from memsched.errors import InvalidInputError, ScheduleError, shown


def _is_whole(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and operator.index(value) is not None
    except TypeError:
        return False


def _name(buffers: Sequence[Any], k: int) -> str:
    return f"buffers[{k}]" if buffers[k].name is None else f"buffers[{k}] ({buffers[k].name!r})"


def validate_placement(buffers: Sequence[Any], offsets: Sequence[int], capacity: int | None = None) -> int:
    """The height in bytes; ScheduleError if the placement is wrong. See `memsched.validate_placement`."""
    for name, value in (("buffers", buffers), ("offsets", offsets)):
        listed = hasattr(value, "__len__") and hasattr(value, "__getitem__") and getattr(value, "ndim", 1) != 0
        if not listed or isinstance(value, (str, bytes, dict)):
            remedy = f"; give its .{name}" if hasattr(value, name) else ""
            raise InvalidInputError(f"{name} is a {type(value).__name__}; it must be a list{remedy}")
    buffers, offsets = list(buffers), list(offsets)  # in their order: a pandas Series is indexed by its labels
    for k, one in enumerate(buffers):
        if not hasattr(one, "alignment"):
            raise InvalidInputError(f"buffers[{k}] is {shown(one)}; it must be a Buffer")
    if capacity is not None and not _is_whole(capacity):
        raise InvalidInputError(f"capacity is {shown(capacity)}; it must be a whole number of bytes")
    capacity = capacity if capacity is None else operator.index(capacity)
    if len(offsets) != len(buffers):
        raise InvalidInputError(f"offsets has {len(offsets)} entries; it must have one per buffer: {len(buffers)}")
    for k, one in enumerate(offsets):
        if not _is_whole(one):
            raise InvalidInputError(f"offsets[{k}] is {shown(one)}; it must be a whole number of bytes")
    offsets = [int(one) for one in offsets]  # sums of numpy's numbers may overflow
    height = 0
    alive: list[tuple[int, int]] = []  # offset and number of the buffers that are alive; they share no bytes
    ends: list[tuple[int, int]] = []  # a heap: end and number of the same
    for k in sorted(range(len(buffers)), key=lambda one: buffers[one].start):
        buffer, offset = buffers[k], offsets[k]
        if offset < 0 or offset % buffer.alignment:
            raise ScheduleError(
                f"{_name(buffers, k)} lies at {shown(offset)}; it must be at a multiple of {buffer.alignment}, >= 0."
            )
        if buffer.offset is not None and offset != buffer.offset:
            raise ScheduleError(f"{_name(buffers, k)} lies at {shown(offset)}; its fixed offset is {buffer.offset}.")
        end = offset + buffer.size
        height = max(height, end)
        if capacity is not None and end > capacity:
            raise ScheduleError(
                f"{_name(buffers, k)} ends at {shown(end)}, above capacity, which is {shown(capacity)}."
            )
        if buffer.size == 0 or buffer.start == buffer.end:
            continue
        while ends and ends[0][0] <= buffer.start:
            ended = heappop(ends)[1]
            del alive[bisect_left(alive, (offsets[ended], ended))]
        place = bisect_left(alive, (offset, k))
        for _, other in alive[max(0, place - 1) : place + 1]:  # the nearest below and above
            if offset < offsets[other] + buffers[other].size and offsets[other] < end:
                first, second = sorted((k, other))
                where = max(offset, offsets[other])
                raise ScheduleError(
                    f"{_name(buffers, first)} and {_name(buffers, second)} share bytes at {shown(where)} while both "
                    f"are alive, from {shown(buffer.start)}."
                )
        alive.insert(place, (offset, k))
        heappush(ends, (buffer.end, k))
    return int(height)

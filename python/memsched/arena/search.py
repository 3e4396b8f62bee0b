"""The core's search for addresses: what it is given, and what it answers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from memsched import _core
from memsched.arena.buffers import Buffer
from memsched.errors import InfeasibleError
from memsched.support.formats import exact_bytes, format_bytes, unit_written
from memsched.support.types import Progress

_LONGEST = 2**62  # ticks
_MORE_SECONDS = 1.0  # to find a sufficient capacity, once the given one is proven too small


class Columns(NamedTuple):
    """Buffers as the core takes them, one entry per buffer: whole ticks, and offset -1 for any."""

    start: list[int]
    end: list[int]
    size: list[int]
    alignment: list[int]
    offset: list[int]


def columns_of(buffers: Sequence[Buffer]) -> Columns:
    """Buffers as the core takes them."""
    start, end = _ticks(buffers)
    return Columns(
        start,
        end,
        [buffer.size for buffer in buffers],
        [buffer.alignment for buffer in buffers],
        [-1 if buffer.offset is None else buffer.offset for buffer in buffers],
    )


def _ticks(buffers: Sequence[Buffer]) -> tuple[list[int], list[int]]:
    """Starts and ends as whole numbers in the same order: distances are kept if they are whole, else ranks are used.

    Only the order decides what fits, but the search breaks ties by how long a buffer lives.
    """
    moments = sorted({moment for buffer in buffers for moment in (buffer.start, buffer.end)})
    if moments and all(isinstance(moment, int) for moment in moments) and moments[-1] - moments[0] < _LONGEST:
        first = int(moments[0])
        return [int(buffer.start) - first for buffer in buffers], [int(buffer.end) - first for buffer in buffers]
    rank = {moment: tick for tick, moment in enumerate(moments)}
    return [rank[buffer.start] for buffer in buffers], [rank[buffer.end] for buffer in buffers]


def load_of(buffers: Sequence[Buffer]) -> int:
    """The largest number of bytes alive at once."""
    start, end = _ticks(buffers)
    return _core.load(start, end, [buffer.size for buffer in buffers])


Placed = tuple[list[int], int, int]  # offsets, height and lower bound


def place_columns(
    columns: Columns,
    capacity: int | None,
    *,
    time_limit: float | None,
    method: str = "search",
    progress: Progress = None,
) -> Placed:
    """Place buffers that the caller has checked; InfeasibleError, as of `memsched.place`, says what would suffice."""
    begin, search = time.perf_counter(), method == "search"
    offsets, top, bound = _core.place(*columns, capacity, search, time_limit, progress)
    if capacity is None or top <= capacity:
        return offsets, top, bound
    spent = time.perf_counter() - begin
    rest = _MORE_SECONDS if time_limit is None else min(_MORE_SECONDS, time_limit - spent)
    if bound > capacity and search and rest > 0:
        top = min(top, _core.place(*columns, None, search, rest, progress)[1])
    raise above_capacity(top, bound, capacity)


def above_capacity(top: int, bound: int, capacity: int) -> InfeasibleError:
    """The error of a placement that ends above the capacity, though perhaps none has to."""
    unit = unit_written(capacity) or format_bytes(capacity).split()[1]  # one for all, with as many digits
    if bound <= capacity:
        return InfeasibleError(
            f"no placement within capacity, {exact_bytes(capacity, unit)}, was found in time, but none is ruled out; "
            f"give it {exact_bytes(top, unit, up=True)}, which suffices, or a longer time_limit",
            top,
        )
    return InfeasibleError(
        f"the buffers need at least {exact_bytes(bound, unit, up=True)}, more than capacity, which is "
        f"{exact_bytes(capacity, unit)}; they fit in {exact_bytes(top, unit, up=True)}",
        top,
    )

"""The buffers of a plan in its arena, as the pictures draw them."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from memsched.arena.placement import Placement
from memsched.problems.problem import largest_graph
from memsched.result import Result


def round_end(result: Result) -> float:
    """The end of the last step of the round in the timeline, in seconds."""
    return max(result.timeline.end.tolist(), default=0.0)


def arena_of(result: Result, placement: Placement, *, in_time: bool) -> tuple[dict[str, list[Any]], float]:
    """Columns with one entry per buffer that is ever alive (low and bytes in bytes), and the end of the last.

    Times are seconds if `in_time`, which only a schedule with addresses is free in; else positions in the order of the
    ops.
    """
    schedule, timeline = result.schedule, result.timeline
    if in_time:
        begin, back = [*timeline.start.tolist(), round_end(result)], [0.0, *timeline.end.tolist()]
    else:
        begin = back = [*accumulate(("run" in step for step in schedule.steps), initial=0)]
    last = len(begin) - 1
    roles = {tensor["name"]: tensor["role"] for tensor in largest_graph(result.problem, schedule).tensors}
    found: dict[str, list[Any]] = {key: [] for key in ("name", "kind", "start", "end", "low", "bytes")}
    for buffer, offset in zip(placement.buffers, placement.offsets, strict=True):
        start, end = begin[min(int(buffer.start), last)], back[min(int(buffer.end), last)]
        if buffer.size > 0 and end > start:
            kind = "workspace" if buffer.name is None else roles.get(buffer.name, "buffer")
            for key, value in zip(found, (buffer.name, kind, start, end, offset, buffer.size), strict=True):
                found[key].append(value)
    return found, max(begin[-1], back[-1])

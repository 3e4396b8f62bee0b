"""What pictures draw of a plan: its budget, the end of its round, and its buffers in their arena."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Any

from memsched._core import Graph
from memsched.arena.placement import Placement
from memsched.problems.problem import largest_graph
from memsched.result import Result
from memsched.support.formats import format_bytes

_NEAR = 1e-6  # of moments, relative to their size


def budget_of(result: Result) -> int:
    """Bytes that the plan may use: the smaller of its budget and the device's memory."""
    return min(result.schedule.budget, result.device.memory)


def round_end(result: Result) -> float:
    """The end of the last step of the round in the timeline, in seconds; of a plan that is repeated, of a period."""
    if result.graph.persistent:
        return float(result.timeline.makespan)
    return max(result.timeline.end.tolist(), default=0.0)


def lowest(placement: Placement) -> str:
    """How far the height of an arena is from the lowest, in words."""
    known, height, bound = "claimed" if placement.claimed else "proven", placement.height, placement.lower_bound
    if placement.optimal:
        return f"{known} lowest"
    if format_bytes(height) == format_bytes(bound):
        return f"{known} to be at most {format_bytes(height - bound)} above the lowest"
    return f"{known} to be at least {format_bytes(bound)}"


def origin(placement: Placement) -> int | float:
    """The moment that a picture counts from: 0, or the first if they are so late that they hardly differ as floats."""
    moments = [moment for buffer in placement.buffers for moment in (buffer.start, buffer.end)] or [0]
    first, last = min(moments), max(moments)
    return 0 if last - first > _NEAR * max(abs(first), abs(last)) else first


Columns = dict[str, list[Any]]  # one entry per buffer


def columns_of(
    placement: Placement, spans: Iterable[tuple[float, float]], kind_of: Callable[[str | None], str]
) -> Columns:
    """Columns with one entry per buffer that is ever alive, given when each is and its kind by its name."""
    found: Columns = {key: [] for key in ("name", "kind", "start", "end", "low", "bytes")}
    for buffer, offset, (start, end) in zip(placement.buffers, placement.offsets, spans, strict=True):
        if buffer.size > 0 and end > start:
            values = (buffer.name, kind_of(buffer.name), start, end, offset, buffer.size)
            for key, value in zip(found, values, strict=True):
                found[key].append(value)
    return found


def roles_of(graph: Graph) -> dict[str, str]:
    """Tensor -> its role; what the backward alone writes is told as a gradient, not as an activation."""
    forward = {name for op in graph.ops if op["phase"] == "fwd" for name in op["writes"]}
    backward = {name for op in graph.ops for name in op["writes"]} - forward
    return {
        one["name"]: "gradient" if one["role"] == "activation" and one["name"] in backward else one["role"]
        for one in graph.tensors
    }


def arena_of(result: Result, placement: Placement, *, in_time: bool) -> tuple[Columns, float]:
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
    roles = roles_of(largest_graph(result.problem, schedule))
    spans = ((begin[min(int(one.start), last)], back[min(int(one.end), last)]) for one in placement.buffers)
    found = columns_of(placement, spans, lambda name: "workspace" if name is None else roles.get(name, "buffer"))
    return found, max(begin[-1], back[-1])

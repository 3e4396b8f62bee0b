"""Addresses for a plan: everything its schedule holds, placed in one arena."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterable

import numpy as np

from memsched import _core
from memsched._core import Graph, Timeline
from memsched.arena.buffers import Buffer
from memsched.arena.placement import Placement, place_buffers
from memsched.arena.residency import as_buffers, as_columns, buffers_of, for_all_rounds, placement_of
from memsched.arena.search import Columns, Placed, place_columns
from memsched.errors import InfeasibleError, InvalidInputError
from memsched.problems.problem import largest_graph, simulate
from memsched.result import Result
from memsched.support import quantities
from memsched.support.docstrings import documented
from memsched.support.formats import exact_bytes
from memsched.support.types import Progress, Quantity, Size

_SECONDS_PER_BUFFER = 5e-6  # a lower estimate of the time to place one


@documented
def place(
    buffers: Iterable[Buffer] | Timeline | Result,
    capacity: Size | None = None,
    *,
    time_limit: Quantity | None = 10.0,
    method: str = "search",
    alignment: Size = 1,
    progress: Progress = None,
) -> Placement:
    """Give every buffer an offset in one arena, so that no two share a byte while both are alive.

    "greedy" tries several rules of thumb; most place the buffer that can go lowest next. "search" starts from the best
    of them and alternates an exact search with a large neighbourhood search, until the arena is proven to be as low as
    it can be. It is never worse than "greedy", given time for one rule.

    The buffers of a Result or a Timeline are what its schedule holds, workspaces included, from step to step in the
    order of the list. So the addresses hold whatever the durations are. Inputs and weights are packed from offset 0,
    as contiguous schedules expect them. Resident bytes are not part of the arena.

    Parameters
    ----------
    buffers : iterable of Buffer, Timeline or Result
        A Timeline must come from `simulate` or a planner, for a Chain or a Graph. One of a family, and one that was
        read from a file, copied or pickled, does not know its buffers: give the Result. Repeated plans have none.
    capacity : int or str, optional
        Bytes. With a capacity, any placement that fits is accepted; by default the arena is made as low as possible.
    time_limit : float, str or None
        Seconds after which the best placement so far is returned; None: search until it is proven.
    method : str
        "search", "greedy", or "ilp" for the integer program of the paper (needs memsched[ilp]).
    alignment : int or str
        Offsets are multiples of this many bytes. For the buffers of a Result or a Timeline; a `Buffer` has its own.

    Raises
    ------
    InfeasibleError
        Nothing fits the capacity, or nothing that fits was found; the message says which. min_memory is the height
        of the best placement known.

    References
    ----------
    Steiner et al., "OLLA: Optimizing the Lifetime and Location of Arrays to Reduce the Memory Usage of Neural
    Networks", 2022, eq. (15). Moffitt, "MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated Machine
    Learning", ASPLOS 2023.

    Examples
    --------
    >>> import memsched as ms
    >>> placement = ms.place([ms.Buffer(0, 2, 3), ms.Buffer(1, 3, 4), ms.Buffer(2, 4, 3)])
    >>> placement.height, placement.optimal
    (7, True)
    >>> chain = ms.Chain([1, 1], [1, 1], [4, 4, 4], [0, 4, 4])
    >>> ms.place(ms.offload(chain, M=20, beta=1)).height
    20
    """
    alignment, began = quantities.alignment(alignment), time.perf_counter()
    limit = quantities.time_limit(time_limit)
    if isinstance(buffers, Result):
        buffers = _buffers_of_plan(buffers, largest_graph(buffers.problem, buffers.schedule), alignment)
    elif isinstance(buffers, Timeline):
        residency = buffers.blocks
        if not buffers._knows_blocks:
            raise InvalidInputError(
                "the timeline does not know its buffers: it is that of a family, or was read from a file, copied or "
                "pickled: give the Result; or it is that of a repeated plan, which cannot have addresses yet"
            )
        buffers = as_buffers(residency, None, alignment)
    elif alignment != 1:
        raise InvalidInputError(f"alignment is {alignment}, but each Buffer has its own; leave it out")
    left = None if limit is None else max(0.0, limit - (time.perf_counter() - began))  # beside making the buffers
    return place_buffers(buffers, capacity, time_limit=left, method=method, progress=progress)


@documented
def with_addresses(
    result: Result,
    placement: Placement | None = None,
    *,
    time_limit: Quantity | None = 10.0,
    alignment: Size = 1,
) -> Result:
    """Return the same plan with an address for everything it holds, so that its budget holds in one real arena.

    Parameters
    ----------
    placement : Placement, optional
        The result of `place(result)`. By default one that fits the budget is made here.
    time_limit : float, str or None
        Seconds for placing.
    alignment : int or str
        Offsets are multiples of this many bytes; inputs and weights are packed without gaps.

    Returns
    -------
    Result
        With a contiguous schedule, simulated again. A step may have to wait until its own bytes are free, so the
        makespan can be longer.

    Raises
    ------
    InfeasibleError
        The addresses need more than the budget; min_memory says how much, resident included.
    InvalidInputError
        The placement belongs to another plan.

    Examples
    --------
    >>> import memsched as ms
    >>> chain = ms.Chain([1, 1], [1, 1], [4, 4, 4], [0, 4, 4])
    >>> plan = ms.with_addresses(ms.offload(chain, M=20, beta=1))
    >>> plan.schedule.memory, plan.placement.fragmentation
    ('contiguous', 0.0)
    """
    if not isinstance(result, Result) or not isinstance(placement, Placement | None):
        raise InvalidInputError(
            f"result is a {type(result).__name__} and placement a {type(placement).__name__}; "
            "give a Result, and a Placement or nothing"
        )
    time_limit = quantities.time_limit(time_limit)
    alignment = quantities.alignment(alignment)
    graph = largest_graph(result.problem, result.schedule)
    if placement is None:
        placement = _within_budget(result, graph, time_limit, alignment)
    elif _matches(placement, _buffers_of_plan(result, graph)) or _matches(
        placement, buffers_of(result.schedule, graph)
    ):
        placement = _with_actual_ends(placement, buffers_of(result.schedule, graph))
    else:
        raise InvalidInputError("the placement belongs to another result; make one with memsched.place(result)")
    room = min(result.schedule.budget, result.device.memory) - graph.resident
    if placement.height > room:
        raise _too_high(result, placement.height + graph.resident, room + graph.resident)
    schedule = _core.with_addresses(graph, result.schedule, list(placement.offsets))
    timeline = simulate(result.problem, schedule, result.device)
    return dataclasses.replace(result, schedule=schedule, timeline=timeline, placement=placement)


def _within_budget(result: Result, graph: Graph, time_limit: float | None, alignment: int) -> Placement:
    """Addresses within the budget. If possible, they make no step wait longer than it waited before."""
    begin = time.perf_counter()
    room = min(result.schedule.budget, result.device.memory) - graph.resident
    residency = _core.residency(graph, result.schedule)
    held = as_columns(residency, alignment)
    columns = for_all_rounds(held, result.schedule)
    found = _without_waits(result, columns, room, time_limit)
    if found is None:
        spent = time.perf_counter() - begin
        rest = None if time_limit is None else max(0.0, time_limit - spent)
        try:
            found = place_columns(columns, room, time_limit=rest)
        except InfeasibleError as error:
            own = placement_of(result.schedule, graph)
            if own is not None and own.height <= room and _matches(own, buffers_of(result.schedule, graph, alignment)):
                return own
            raise _too_high(result, error.min_memory + graph.resident, room + graph.resident) from None
    offsets, height, bound = found
    if columns is not held:
        bound = _core.load(held.start, held.end, held.size)
    return Placement(
        buffers=tuple(as_buffers(residency, graph, alignment)),
        offsets=tuple(offsets),
        height=height,
        lower_bound=min(bound, height),
        method="search",
        runtime=time.perf_counter() - begin,
    )


def _without_waits(result: Result, columns: Columns, room: int, time_limit: float | None) -> Placed | None:
    """Addresses within the room that make no step wait, or None if they are not found in a share of the time."""
    seconds = min(2.0, math.inf if time_limit is None else time_limit / 5)
    if seconds < _SECONDS_PER_BUFFER * len(columns.start):
        return None
    # Each buffer is held until the last step that begins before its bytes have been returned.
    begins, ends, last = result.timeline.start, result.timeline.end, np.array(columns.end, dtype=np.int64)
    first = np.minimum.accumulate(begins[::-1])[::-1]  # the earliest begin of this step and all later ones
    longer = columns._replace(end=np.maximum(last, np.searchsorted(first, ends[last - 1])).tolist())
    try:
        offsets, height, _ = place_columns(longer, room, time_limit=seconds)
    except InfeasibleError:
        return None
    return offsets, height, _core.load(columns.start, columns.end, columns.size)


def _matches(placement: Placement, buffers: list[Buffer]) -> bool:
    """Whether the placement is of these buffers: aligned, and with inputs and weights where they must be."""

    def facts(one: Buffer) -> tuple[float, float, int]:
        return one.start, one.end, one.size

    return [facts(one) for one in placement.buffers] == [facts(one) for one in buffers] and all(
        offset == one.offset if one.offset is not None else offset % one.alignment == 0
        for one, offset in zip(buffers, placement.offsets, strict=True)
    )


def _too_high(result: Result, needed: int, budget: int) -> InfeasibleError:
    return InfeasibleError(
        f"with addresses, the plan of {result.planner} needs {exact_bytes(needed)}, and its budget is "
        f"{exact_bytes(budget)}; plan for less memory, or allow the addresses more",
        needed,
    )


def _buffers_of_plan(result: Result, graph: Graph, alignment: int = 1) -> list[Buffer]:
    """The buffers of a plan, with lifetimes such that the addresses also hold in the rounds of smaller batches."""
    residency = _core.residency(graph, result.schedule)
    held = as_columns(residency, alignment)
    columns = for_all_rounds(held, result.schedule)
    buffers = as_buffers(residency, graph, alignment)
    if columns is held:
        return buffers
    return [dataclasses.replace(one, end=end) for one, end in zip(buffers, columns.end, strict=True)]


def _with_actual_ends(placement: Placement, held: list[Buffer]) -> Placement:
    """The placement with the actual ends of its buffers, where they were placed for longer, and the bound for these."""
    if [one.end for one in placement.buffers] == [one.end for one in held]:
        return placement
    buffers = [dataclasses.replace(one, end=own.end) for one, own in zip(placement.buffers, held, strict=True)]
    shorter = dataclasses.replace(placement, buffers=tuple(buffers))
    return dataclasses.replace(shorter, lower_bound=min(shorter.load, shorter.height))

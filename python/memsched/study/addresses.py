"""Addresses for plans: what a schedule holds from step to step, placed in one arena."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterable

import numpy as np

from memsched import _core
from memsched._core import Graph, Timeline
from memsched.arena.buffers import Buffer
from memsched.arena.placement import Columns, Placed, Placement, place_buffers, place_columns
from memsched.arena.residency import as_buffers, as_columns, buffers_of, for_all_rounds, placement_of
from memsched.errors import InfeasibleError, InvalidInputError
from memsched.problems.problem import largest_graph, simulate
from memsched.result import Result
from memsched.support import checks
from memsched.support.types import Progress

_SECONDS_A_BUFFER = 5e-6  # that placing takes at least


def place(
    buffers: Iterable[Buffer] | Timeline | Result,
    capacity: int | None = None,
    *,
    time_limit: float | None = 10.0,
    method: str = "search",
    alignment: int = 1,
    progress: Progress = None,
) -> Placement:
    """Give every buffer an offset in one arena, so that no two share a byte while both are alive.

    "greedy" tries rules of thumb: mostly, the buffer that can go lowest is placed next. "search" starts from the best
    of them and goes on, by an exact search in turns with a large neighbourhood search, until the arena is proven to be
    as low as it can be. It is never worse than "greedy" with time for one rule.

    Of a Result or a Timeline the buffers are what its schedule holds from step to step, workspaces included, by the
    order of the list: so the addresses hold whatever the durations are. Inputs and weights are packed from offset 0,
    where contiguous schedules have them. Resident bytes are no part of the arena.

    Parameters
    ----------
    buffers : iterable of Buffer, Timeline or Result
        A Timeline must come from `simulate` or a planner; one that was read from a file or copied no longer knows its
        buffers.
    capacity : int, optional
        Bytes: any placement that fits will do. By default the arena is made as low as possible.
    time_limit : float or None
        Seconds after which the best placement so far is returned; None: not before it is proven.
    method : str
        "search", "greedy", or "ilp" for the integer program of the paper (needs memsched[ilp]).
    alignment : int
        Bytes, of which offsets are multiples, for the buffers of a Result or a Timeline; each `Buffer` has its own.
    progress : callable, optional
        Called with a fraction from 0 to 1.

    Returns
    -------
    Placement

    Raises
    ------
    InfeasibleError
        Nothing fits the capacity, or nothing was found that does; the message says which. min_memory is the height of
        the best placement known.
    InvalidInputError

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
    alignment = checks.count("alignment", alignment, 1, 2**40)
    if isinstance(buffers, Result):
        buffers = _buffers_of_plan(buffers, largest_graph(buffers.problem, buffers.schedule), alignment)
    elif isinstance(buffers, Timeline):
        blocks = buffers.blocks
        if len(blocks[0]) == 0 and len(buffers.start) > 0 and buffers.memory[1].max() > buffers.memory[1].min():
            raise InvalidInputError(
                "the timeline was read from a file, copied or pickled, and does not know its buffers; "
                "give the Result, or simulate again"
            )
        buffers = as_buffers(blocks, None, alignment)
    elif alignment != 1:
        raise InvalidInputError(f"alignment is {alignment}, but each Buffer has its own; leave it out")
    return place_buffers(buffers, capacity, time_limit=time_limit, method=method, progress=progress)


def with_addresses(
    result: Result, placement: Placement | None = None, *, time_limit: float | None = 10.0, alignment: int = 1
) -> Result:
    """The same plan with an address for everything it holds, so that its budget holds in one real arena.

    Parameters
    ----------
    result : Result
        Of any planner.
    placement : Placement, optional
        What `place(result)` gave. By default it is made here, to fit the budget.
    time_limit : float or None
        Seconds for placing.
    alignment : int
        Bytes, of which the offsets are multiples. Inputs and weights are packed as they are.

    Returns
    -------
    Result
        With a contiguous schedule, simulated again. A step may have to wait until just its bytes are free, so the
        makespan can be longer.

    Raises
    ------
    InfeasibleError
        The addresses need more than the budget; min_memory says how much, resident included.
    InvalidInputError
        The placement is of another plan.

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
    time_limit = checks.time_limit(time_limit)
    alignment = checks.count("alignment", alignment, 1, 2**40)
    graph = largest_graph(result.problem, result.schedule)
    if placement is None:
        placement = _within_budget(result, graph, time_limit, alignment)
    elif _is_of(placement, _buffers_of_plan(result, graph)) or _is_of(placement, buffers_of(result.schedule, graph)):
        placement = _as_held(placement, buffers_of(result.schedule, graph))
    else:
        raise InvalidInputError("the placement is not one of this result; make it by memsched.place(result)")
    room = min(result.schedule.budget, result.device.memory) - graph.resident
    if placement.height > room:
        raise _too_high(result, placement.height + graph.resident, room + graph.resident)
    schedule = _core.with_addresses(graph, result.schedule, list(placement.offsets))
    timeline = simulate(result.problem, schedule, result.device)
    return dataclasses.replace(result, schedule=schedule, timeline=timeline, placement=placement)


def _within_budget(result: Result, graph: Graph, time_limit: float | None, alignment: int) -> Placement:
    """Addresses within the budget; if possible such that no step waits for an address that it did not wait for before.

    Raises
    ------
    InfeasibleError
        They need more than the budget.
    """
    begin = time.perf_counter()
    room = min(result.schedule.budget, result.device.memory) - graph.resident
    blocks = _core.residency(graph, result.schedule)
    held = as_columns(blocks, alignment)
    columns = for_all_rounds(held, result.schedule)
    found = _calm(result, columns, room, time_limit)
    if found is None:
        spent = time.perf_counter() - begin
        rest = None if time_limit is None else max(0.0, time_limit - spent)
        try:
            found = place_columns(columns, room, time_limit=rest)
        except InfeasibleError as error:
            own = placement_of(result.schedule, graph)
            if own is not None and own.height <= room and _is_of(own, buffers_of(result.schedule, graph, alignment)):
                return own
            raise _too_high(result, error.min_memory + graph.resident, room + graph.resident) from None
    offsets, height, bound = found
    if columns is not held:
        bound = _core.load(held.start, held.end, held.size)
    return Placement(
        buffers=tuple(as_buffers(blocks, graph, alignment)),
        offsets=tuple(offsets),
        height=height,
        lower_bound=min(bound, height),
        method="search",
        runtime=time.perf_counter() - begin,
    )


def _calm(result: Result, columns: Columns, room: int, time_limit: float | None) -> Placed | None:
    """Addresses within the room that no step waits for, if there is time to look for them, and they are found."""
    seconds = min(2.0, math.inf if time_limit is None else time_limit / 5)
    if seconds < _SECONDS_A_BUFFER * len(columns.start):
        return None
    try:
        offsets, height, _ = place_columns(_until_back(result, columns), room, time_limit=seconds)
    except InfeasibleError:
        return None
    return offsets, height, _core.load(columns.start, columns.end, columns.size)


def _is_of(placement: Placement, buffers: list[Buffer]) -> bool:
    """Whether these are the buffers that were placed, aligned, and inputs and weights where they must be."""

    def facts(one: Buffer) -> tuple[float, float, int]:
        return one.start, one.end, one.size

    return [facts(one) for one in placement.buffers] == [facts(one) for one in buffers] and all(
        offset == one.offset if one.offset is not None else offset % one.alignment == 0
        for one, offset in zip(buffers, placement.offsets, strict=True)
    )


def _too_high(result: Result, needed: int, budget: int) -> InfeasibleError:
    return InfeasibleError(
        f"with addresses the plan of {result.planner} needs {needed} bytes, and its budget is {budget}; "
        "plan for less memory, or give the addresses more",
        needed,
    )


def _until_back(result: Result, columns: Columns) -> Columns:
    """The buffers, each until the last step that begins before its bytes have come back."""
    begins, ends = result.timeline.start, result.timeline.end
    first = np.minimum.accumulate(begins[::-1])[::-1]  # from a step on, the earliest begin
    last = np.array(columns.end, dtype=np.int64)
    return columns._replace(end=np.maximum(last, np.searchsorted(first, ends[last - 1])).tolist())


def _buffers_of_plan(result: Result, graph: Graph, alignment: int = 1) -> list[Buffer]:
    """The same, such that addresses hold in the rounds of smaller batches, too."""
    blocks = _core.residency(graph, result.schedule)
    held = as_columns(blocks, alignment)
    columns = for_all_rounds(held, result.schedule)
    buffers = as_buffers(blocks, graph, alignment)
    if columns is held:
        return buffers
    return [dataclasses.replace(one, end=end) for one, end in zip(buffers, columns.end, strict=True)]


def _as_held(placement: Placement, held: list[Buffer]) -> Placement:
    """The placement with each buffer until it ends, where it was placed for longer, and what is proven of those."""
    if [one.end for one in placement.buffers] == [one.end for one in held]:
        return placement
    buffers = [dataclasses.replace(one, end=own.end) for one, own in zip(placement.buffers, held, strict=True)]
    return dataclasses.replace(placement, buffers=tuple(buffers), lower_bound=min(_load(buffers), placement.height))


def _load(buffers: list[Buffer]) -> int:
    """The most bytes that are alive at once."""
    return _core.load([int(b.start) for b in buffers], [int(b.end) for b in buffers], [b.size for b in buffers])

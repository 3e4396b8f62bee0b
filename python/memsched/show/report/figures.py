"""The data of the pictures in a report, as columns of exact figures; the scripts draw them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from memsched.arena.residency import placement_of
from memsched.problems.problem import largest_graph, short_stage_of
from memsched.result import Result
from memsched.show.arena import arena_of, budget_of, round_end
from memsched.show.plots.figure import byte_unit, time_unit
from memsched.show.plots.plan import memory_curve
from memsched.show.report.tensors import TensorUse
from memsched.show.trace import intervals

Columns = dict[str, Any]


def timeline(result: Result) -> Columns:
    """One entry per run, transfer or update on the host; of a plan in rounds, of the first round.

    step (index in the schedule), lane (0: compute, 1: device to host, 2: host to device, 3: host), kind ("forward",
    "backward", "loss", "update", "recompute", "offload" or "prefetch"), name, layer (of a chain, the name of the stage;
    None if it has none), start and end (seconds), bytes (None: of no transfer).

    Examples
    --------
    >>> import memsched as ms
    >>> chain = ms.Chain([1, 1], [1, 1], [4, 4, 4], [0, 4, 4])
    >>> timeline(ms.greedy(chain, M=20, beta=4))["kind"]
    ['forward', 'forward', 'loss', 'backward', 'backward']
    """
    bars = intervals(result)
    keys = ("step", "lane", "kind", "name", "start", "end", "bytes")
    return {key: [getattr(bar, key) for bar in bars] for key in keys} | {
        "layer": [short_stage_of(result.problem, bar.name) for bar in bars],
    }


def memory(result: Result) -> Columns:
    """The memory curve (seconds, bytes held from then on), the budget, the peak and the resident bytes."""
    times, counts = memory_curve(result)
    at = np.flatnonzero(counts == result.peak_memory)
    return {
        "time": times.tolist(),
        "bytes": counts.tolist(),
        "budget": budget_of(result),
        "peak": result.peak_memory,
        "peak_time": float(times[at[0]]) if len(at) else None,  # None: it is in another round
        "resident": result.graph.resident,
    }


def lifetimes(uses: list[TensorUse]) -> Columns:
    """One entry per stay of a tensor, ordered by first appearance: tensor (index), place, start, end.

    The rows of the picture are `order`, indices of tensors.
    """
    seen = [at for at, use in enumerate(uses) if use.stays]
    order = sorted(seen, key=lambda at: (uses[at].stays[0].start, at))
    stays = [(at, stay) for at in order for stay in uses[at].stays]
    return {
        "order": order,
        "tensor": [at for at, _ in stays],
        "place": [stay.place for _, stay in stays],
        "start": [stay.start for _, stay in stays],
        "end": [stay.end for _, stay in stays],
    }


def addresses(result: Result) -> Columns | None:
    """One entry per buffer that is ever alive, if the plan has addresses; else None.

    Times are seconds if the schedule itself has addresses, since only then are they free in time; else positions in
    the order of the ops.
    """
    problem, schedule = result.problem, result.schedule
    graph = largest_graph(problem, schedule)
    placement = result.placement or placement_of(schedule, graph)
    if placement is None:
        return None
    in_time = schedule.memory == "contiguous"
    found, until = arena_of(result, placement, in_time=in_time)
    return found | {
        "in_time": in_time,
        "until": until,
        "height": placement.height,
        "lower_bound": placement.lower_bound,
        "claimed": placement.claimed,
        "fragmentation": placement.fragmentation,
        "capacity": budget_of(result) - graph.resident,
    }


def figures(result: Result, uses: list[TensorUse]) -> Columns:
    """All pictures of one result."""
    return {
        "until": round_end(result),
        "timeline": timeline(result),
        "memory": memory(result),
        "lifetimes": lifetimes(uses),
        "addresses": addresses(result),
    }


def scales(results: Sequence[Result], drawn: Sequence[Columns]) -> list[Columns]:
    """The pictures with their scales, which those of the same problem share, so that they can be compared.

    shared (how many plans share them), time_end (seconds), memory_end (bytes), time_unit and byte_unit: the units of
    the axes as (units per second or bytes per unit, name). Addresses have their own: axis_end (seconds or ops),
    top (bytes) and unit.
    """
    return [
        one | _scale([other for same, other in zip(results, drawn, strict=True) if _alike(result, same)], one)
        for result, one in zip(results, drawn, strict=True)
    ]


def _alike(result: Result, other: Result) -> bool:
    return type(result.problem) is type(other.problem) and bool(result.problem == other.problem)


def _scale(group: Sequence[Columns], own: Columns) -> Columns:
    until = max(one["until"] for one in group)
    memories = [one["memory"] for one in group]
    # A scale with a budget that is far above every peak would flatten the curves.
    peak, budget = max(one["peak"] for one in memories), max(one["budget"] for one in memories)
    memory_end = peak if budget > 4 * peak else max(budget, peak)
    found = {
        "shared": len(group),
        "time_end": until,
        "memory_end": memory_end,
        "time_unit": list(time_unit(until)),
        "byte_unit": list(byte_unit(memory_end)),
    }
    if own["addresses"] is not None:
        placed = [one["addresses"] for one in group if one["addresses"] is not None]
        like = [one for one in placed if one["in_time"] == own["addresses"]["in_time"]]
        top = max(
            max(one["height"], one["capacity"] if one["capacity"] <= 1.8 * one["height"] else 0) for one in placed
        )
        axis_end = max(one["until"] for one in like)
        found["addresses"] = own["addresses"] | {"axis_end": axis_end, "top": top, "unit": list(byte_unit(top))}
    return found

"""Timelines as traces in Chrome's Trace Event Format, for Perfetto (ui.perfetto.dev) and chrome://tracing."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

from memsched.errors import InvalidInputError
from memsched.result import Planned, Result, results_in
from memsched.show.arena import budget_of
from memsched.support import checks
from memsched.support.docstrings import documented

LANES = ("compute", "device to host", "host to device", "host")
LINKS = (1, 2)  # of these, those of transfers
_VERBS = ("run", "offload", "prefetch", "update")  # of the steps in each lane
_PROCESS = 1
_ROUNDING = 1e-12  # of times


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A step that takes time: a run, an offload, a prefetch, or an update on the host."""

    step: int  # index in the schedule
    lane: int  # index in LANES
    kind: str  # "forward", "loss", "backward", "update", "recompute", "offload" or "prefetch"
    name: str  # of the op or the tensor
    start: float  # seconds
    end: float
    bytes: int | None  # that a transfer moves; None for a run, and for an update


def intervals(result: Result) -> list[Interval]:
    """The runs and transfers of a result in the order of its schedule, with the times of its timeline.

    Of a plan that is repeated without end, those of one period in a steady state; what crosses its end is in two parts.
    InvalidInputError: the timeline does not belong to the schedule, or the schedule does not belong to the problem.
    """
    schedule, timeline = result.schedule, result.timeline
    if len(timeline.start) != len(schedule.steps):
        raise InvalidInputError(
            f"the timeline has {len(timeline.start)} steps, the schedule {len(schedule.steps)}; simulate it"
        )
    graph = result.graph
    period = float(timeline.makespan) if graph.persistent else math.inf
    phases = {op["name"]: _phase(op) for op in graph.ops}
    sizes = {tensor["name"]: tensor["size"] for tensor in graph.tensors}
    seen: set[str] = set()
    found = []
    for index, step in enumerate(schedule.steps):
        verb = next((verb for verb in _VERBS if verb in step), None)
        if verb is None:
            continue
        name = step[verb]
        of_op = verb in ("run", "update")
        if name not in (phases if of_op else sizes):
            raise InvalidInputError(f"step {index} names {name!r}, which the graph does not have")
        kind = verb
        if verb == "run":
            kind = "recompute" if name in seen else phases[name]
            seen.add(name)
        found += [
            Interval(
                step=index,
                lane=_VERBS.index(verb),
                kind=kind,
                name=name,
                start=start,
                end=end,
                bytes=None if of_op else int(sizes[name]),
            )
            for start, end in _within(float(timeline.start[index]), float(timeline.end[index]), period)
        ]
    return found


def _within(start: float, end: float, period: float) -> list[tuple[float, float]]:
    """When a step is under way in one period, if it begins anew in each."""
    if not 0.0 < period < math.inf:
        return [(start, end)]
    first = start % period
    last = first + (end - start)
    return [(first, last)] if last <= period * (1 + _ROUNDING) else [(first, period), (0.0, last - period)]


def _phase(op: dict[str, Any]) -> str:
    if op.get("updates") or op.get("kind") == "optimizer":
        return "update"
    return "loss" if "loss" in op.get("kind", "") else "forward" if op["phase"] == "fwd" else "backward"


def _names(lanes: set[int]) -> list[dict[str, Any]]:
    meta: dict[str, Any] = {"ph": "M", "pid": _PROCESS}
    events = [meta | {"name": "process_name", "args": {"name": "memsched"}}]
    for thread, lane in enumerate(LANES, start=1):
        if thread - 1 not in lanes:
            continue
        events.append(meta | {"tid": thread, "name": "thread_name", "args": {"name": lane}})
        events.append(meta | {"tid": thread, "name": "thread_sort_index", "args": {"sort_index": thread}})
    return events


def _microseconds(seconds: float) -> float:
    """Microseconds, with infinity replaced, which JSON lacks."""
    return min(seconds * 1e6, sys.float_info.max)


def _complete(interval: Interval) -> dict[str, Any]:
    args: dict[str, Any] = {"step": interval.step}
    if interval.bytes is not None:
        args["bytes"] = interval.bytes
    return {
        "ph": "X",
        "pid": _PROCESS,
        "tid": 1 + interval.lane,
        "name": interval.name,
        "cat": interval.kind,
        "ts": _microseconds(interval.start),
        "dur": _microseconds(interval.end - interval.start),
        "args": args,
    }


def _counter(name: str, seconds: float, count: int) -> dict[str, Any]:
    return {"ph": "C", "pid": _PROCESS, "name": name, "ts": _microseconds(seconds), "args": {"bytes": count}}


@documented
def trace(result: Planned) -> dict[str, Any]:
    """A result as a trace, with its streams as threads and memory and budget as counters.

    Returns
    -------
    dict
        In the Trace Event Format, ready for `json.dump`: times in microseconds, one complete event ("X") per
        run or transfer, and counter events ("C") in bytes, resident included. Of a plan that is repeated without end,
        those of one period.

    Raises
    ------
    InvalidInputError
        The result's timeline does not belong to its schedule.

    Examples
    --------
    >>> import memsched as ms
    >>> chain = ms.Chain([1, 1, 1], [1, 1, 1], [4, 4, 4, 4], [0, 4, 4, 4])
    >>> events = ms.trace(ms.greedy(chain, M=20, beta=4))["traceEvents"]
    >>> [(event["name"], event["ts"], event["dur"]) for event in events if event.get("cat") == "prefetch"]
    [('a0', 4000000.0, 1000000.0)]
    """
    result = checks.kind("result", results_in(result), Result)
    timeline = result.timeline
    budget = budget_of(result)
    times, counts = timeline.memory
    bars = intervals(result)
    events = [_complete(interval) for interval in bars]
    events += [_counter("memory", float(time), int(count)) for time, count in zip(times, counts, strict=True)]
    events += [_counter("budget", time, budget) for time in (0.0, float(timeline.makespan))]
    events = _names({0, *LINKS} | {bar.lane for bar in bars}) + sorted(events, key=lambda event: float(event["ts"]))
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "problem": result.problem.name,
            "planner": result.planner,
            "makespan_seconds": timeline.makespan,
            "lower_bound_seconds": result.lower_bound,
            "peak_memory_bytes": timeline.peak_memory,
            "budget_bytes": budget,
            "resident_bytes": result.graph.resident,
        },
    }

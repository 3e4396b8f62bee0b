"""Other planners on the problem of a result: all of them at its memory, and some over a range of memories."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from memsched._core import Chain
from memsched.errors import InfeasibleError, MemschedError
from memsched.planners.call import Draft
from memsched.planners.registry import PLANNERS, min_memory
from memsched.problems.problem import altered, graph_of, peak_memory
from memsched.result import Result, above
from memsched.show.arena import budget_of
from memsched.show.plots.figure import byte_unit, time_unit
from memsched.show.plots.frontier import bound_words, lower_bounds
from memsched.show.plots.palette import line_styles
from memsched.show.report.summary import Summary
from memsched.show.report.tables import Column, Table
from memsched.study.compare import compare
from memsched.study.frontier import Frontier, frontier, spaced
from memsched.support.types import Quantity

CHAIN_CURVES = ("selective", "pofo", "rotor", "offload")
GRAPH_CURVES = ("selective", "pooch")
MOST_OPS = 5_000  # of a graph with curves: of a larger one a first plan takes longer than a point should
POINTS = 12
SECONDS = 0.2  # for each point of a curve, if no limit is given
GRAPH_SECONDS = 1.0  # for each planner of a graph, if no limit is given; some simulate every pair of feature maps
Outcomes = dict[str, Result | MemschedError]
Progress = Callable[[str], None] | None

_COLUMNS = (
    Column(title="planner"),
    Column(title="makespan", kind="seconds", bar=True),
    Column(title="gap", kind="percent", hint="of the makespan to the lower bound on plans of the planner's kind"),
    Column(title="over ideal", kind="percent", hint="over the time of the computation alone"),
    Column(title="peak", kind="bytes"),
    Column(title="moved", kind="bytes", hint="out and back in"),
    Column(title="recomputed", kind="seconds", hint="spent on repeated runs"),
    Column(title="planned in", kind="seconds"),
    Column(title="optimal", kind="yes", hint="proven: the makespan meets the lower bound"),
    Column(title="needs", kind="bytes", hint="memory that is enough for a planner without a plan here"),
    Column(title="note"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The results of other planners on one problem."""

    outcomes: Outcomes  # from `compare`: planner -> Result, or the error it raised
    curves: tuple[Frontier, ...]  # empty for very large graphs

    def frontier_json(self, result: Result) -> dict[str, Any] | None:
        """The curves as exact figures, with the result's own point."""
        if not self.curves:
            return None
        first = self.curves[0]
        spans = [one.makespan[np.isfinite(one.makespan)].max(initial=0.0) for one in self.curves]
        return {
            "ideal": first.ideal,
            "peak": peak_memory(first.problem),
            "time_unit": list(time_unit(max(first.ideal, result.makespan, *map(float, spans)))),
            "byte_unit": list(byte_unit(max(int(first.memory[-1]), budget_of(result)))),
            "planners": [
                {
                    "name": one.planner,
                    "style": style,
                    "memory": [int(memory) for memory, found in zip(one.memory, one.results, strict=True) if found],
                    "makespan": [found.makespan for found in one.results if found],
                    "lower_bound": [found.lower_bound for found in one.results if found],
                }
                for one, style in zip(self.curves, line_styles([one.planner for one in self.curves]), strict=True)
            ],
            "bounds": {
                bound_words(self.curves, anything): [list(column) for column in zip(*points, strict=True)]
                for anything, points in lower_bounds(self.curves).items()
            },
            "own": {"name": result.planner, "memory": budget_of(result), "makespan": result.makespan},
        }


def study(result: Result, time_limit: Quantity | None = None, progress: Progress = None) -> Study:
    """Run the planners listed for the problem of a result, with its memory and its link.

    The time limit is for each planner that takes one, and for each point of a curve. `progress` is called with a text
    before each part of the work.
    """
    problem, chunk = result.problem, result.schedule.chunk
    device = altered(result.device, memory=budget_of(result))

    say = progress or (lambda text: None)
    limit = GRAPH_SECONDS if time_limit is None and not isinstance(problem, Chain) else time_limit
    outcomes = compare(
        problem, device=device, chunk=chunk, time_limit=limit, progress=lambda name: say(f"planning: {name}")
    )
    curves = []
    if isinstance(problem, Chain) or len(graph_of(problem).ops) <= MOST_OPS:
        kind, usual = ("chain", CHAIN_CURVES) if isinstance(problem, Chain) else ("graph", GRAPH_CURVES)
        own = [result.planner] if kind in getattr(PLANNERS.get(result.planner), "problems", ()) else []
        repeated = bool(graph_of(problem).persistent)
        names = [name for name in dict.fromkeys((*usual, *own)) if PLANNERS[name].repeats or not repeated]
        least = min(min_memory(problem, name) for name in names)
        memories = spaced(least, peak_memory(problem), POINTS, budget_of(result))
        limit = SECONDS if time_limit is None else time_limit
        for name in names:
            say(f"frontier: {name}")
            curve = frontier(problem, planner=name, device=device, memory=memories, chunk=chunk, time_limit=limit)
            curves.append(_agreed(curve, outcomes, device.memory))
    return Study(outcomes=outcomes, curves=tuple(curves))


def _agreed(curve: Frontier, outcomes: Outcomes, budget: int) -> Frontier:
    """The curve with the outcome at its budget, if that is faster; one without a plan becomes the curve's.

    A plan in the table stays what `compare` makes of it, though a point of a curve, by the clock, may be faster.
    """
    known, memories, results = outcomes.get(curve.planner), curve.memory.tolist(), list(curve.results)
    if isinstance(known, Result):
        for at, (memory, found) in enumerate(zip(memories, curve.results, strict=True)):
            if memory >= budget and (found is None or known.makespan < found.makespan):
                device = altered(curve.device, memory=memory)
                results[at] = known if memory == budget else Draft.of(known).on(known.problem, device)
    here = results[memories.index(budget)]
    if here is not None and isinstance(known, MemschedError):
        outcomes[curve.planner] = here
    elif isinstance(known, InfeasibleError):
        enough = (memory for memory, found in zip(memories, results, strict=True) if found is not None)
        outcomes[curve.planner] = InfeasibleError(str(known), min([known.min_memory, *enough]))
    return replace(curve, results=tuple(results))


def studies(results: Sequence[Result], time_limit: Quantity | None = None, progress: Progress = None) -> list[Study]:
    """One study per result; results with the same problem, device, budget and pieces share one."""
    done: list[tuple[Result, Study]] = []
    found = []
    for result in results:
        known = next((one for other, one in done if _asked(result) == _asked(other)), None)
        if known is None:
            known = study(result, time_limit, progress)
            done.append((result, known))
        found.append(known)
    return found


def _asked(result: Result) -> tuple[Any, ...]:
    problem, chunk = result.problem, result.schedule.chunk
    return type(problem), problem, result.device, budget_of(result), chunk, result.planner


def _cells(outcome: Result | MemschedError, ideal: float) -> list[Any]:
    if isinstance(outcome, InfeasibleError):
        return [*[None] * 8, outcome.min_memory, "no plan"]
    if isinstance(outcome, MemschedError):
        return [*[None] * 9, f"failed: {outcome}"]
    timeline = outcome.timeline
    return [
        outcome.makespan,
        outcome.gap if outcome.lower_bound > 0 else None,
        above(ideal, outcome.makespan) if ideal > 0 else None,
        outcome.peak_memory,
        timeline.bytes_out + timeline.bytes_in,
        timeline.recompute_time,
        outcome.runtime,
        outcome.optimal,
        None,
        "",
    ]


def comparison_table(name: str, result: Result, summary: Summary, outcomes: Outcomes) -> Table:
    """The result first, then the other planners: fastest first, those without a plan last.

    Its own planner has a second row only where other options make a faster plan.
    """
    times = {planner: one.makespan if isinstance(one, Result) else math.inf for planner, one in outcomes.items()}
    others = [one for one in outcomes.items() if one[0] != result.planner or times[one[0]] < result.makespan]
    others.sort(key=lambda one: times[one[0]])
    rows = [[result.planner, *_cells(result, summary.ideal)[:-1], "this plan"]]
    rows += [[planner, *_cells(outcome, summary.ideal)] for planner, outcome in others]
    return Table(name=name, columns=_COLUMNS, rows=rows, marked=(0,))

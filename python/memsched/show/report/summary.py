"""The figures of one result that a report states, and what is proven about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from memsched import _core
from memsched.arena.residency import placement_of
from memsched.problems.bounds import certified, recompute_bound
from memsched.problems.family import GraphFamily
from memsched.problems.problem import make_device
from memsched.result import Result
from memsched.show.report.figures import budget_of

_EQUAL = 1 + 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a report says about a result beyond the result's own figures.

    Attributes
    ----------
    ideal : float
        Seconds of computation alone, each op once with its fastest algorithm, all rounds together.
    any_bound : float
        Seconds; no plan within the budget is faster, also none that recomputes (of a family, in the same rounds).
    rounds : int
    ops, tensors : int
        Of the graph.
    placed : bool
        Whether the plan has addresses.
    makespan, lower_bound : float
        Seconds, of the result.
    """

    ideal: float
    any_bound: float
    rounds: int
    ops: int
    tensors: int
    placed: bool
    makespan: float
    lower_bound: float

    @property
    def over_ideal(self) -> float | None:
        """(makespan - ideal) / ideal; None without computation."""
        return max(0.0, self.makespan / self.ideal - 1) if self.ideal > 0 else None

    @property
    def any_gap(self) -> float | None:
        """(makespan - any_bound) / any_bound: how far at most the plan is from the best possible one."""
        if self.makespan <= self.any_bound * _EQUAL:
            return 0.0
        return self.makespan / self.any_bound - 1 if self.any_bound > 0 else None

    @property
    def standing(self) -> str:
        """What is proven: "optimal" among all plans, "best" among those that run each op once, or "near"."""
        if self.any_gap == 0.0:
            return "optimal"
        return "best" if self.makespan <= self.lower_bound * _EQUAL else "near"

    def to_json(self, result: Result) -> dict[str, Any]:
        """The figures of the result and these."""
        timeline = result.timeline
        return {
            "problem": result.problem.name,
            "planner": result.planner,
            "params": result.params,
            "device": result.device.to_json(),
            "rounds": [list(pair) for pair in result.schedule.rounds],
            "chunk": result.schedule.chunk,
            "budget": budget_of(result),
            "makespan": result.makespan,
            "lower_bound": result.lower_bound,
            "bound_on": result.bound_on,
            "gap": result.gap,
            "optimal": result.optimal,
            "any_bound": self.any_bound,
            "any_gap": self.any_gap,
            "ideal": self.ideal,
            "peak_memory": result.peak_memory,
            "resident": result.graph.resident,
            "bytes_out": timeline.bytes_out,
            "bytes_in": timeline.bytes_in,
            "idle": timeline.idle,
            "recompute_time": timeline.recompute_time,
            "estimate": result.estimate,
            "runtime": result.runtime,
            "offloaded": list(result.offloaded),
            "recomputed": list(result.recomputed),
        }


def summarize(result: Result) -> Summary:
    """The summary of a result.

    Examples
    --------
    >>> import memsched as ms
    >>> chain = ms.Chain([1, 1], [1, 1], [4, 4, 4], [0, 4, 4])
    >>> summarize(ms.greedy(chain, M=20, beta=4)).standing
    'optimal'
    """
    problem, rounds = result.problem, result.schedule.rounds
    device = make_device(budget_of(result), None, result.device)
    if isinstance(problem, GraphFamily):
        graphs = [(problem.at(batch), times) for batch, times in rounds]
    else:
        graphs = [(result.graph, 1)]
    bound = sum(times * recompute_bound(graph, device) for graph, times in graphs)
    graph = graphs[0][0]
    return Summary(
        ideal=sum(times * _core.graph_bounds(one, device, device.memory)[0] for one, times in graphs),
        any_bound=certified(max(bound, result.lower_bound if result.bound_on == "all" else 0.0), result.makespan),
        rounds=sum(times for _, times in rounds),
        ops=len(graph.ops),
        tensors=len(graph.tensors),
        placed=result.placement is not None or placement_of(result.schedule, graph) is not None,
        makespan=result.makespan,
        lower_bound=result.lower_bound,
    )

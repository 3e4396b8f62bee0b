"""The figures of one result that a report shows, and what is proven about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from memsched import _core
from memsched.problems.bounds import alike, bound_of, certified, over_rounds
from memsched.problems.family import count_rounds
from memsched.problems.problem import make_device
from memsched.result import Result
from memsched.show.arena import budget_of
from memsched.support.documents import fields

_EQUAL = 1 + 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a report shows of a result in addition to the result's own figures."""

    result: Result
    ideal: float  # seconds of computation alone: each op once with its fastest algorithm, over all rounds
    any_bound: float  # seconds; on all plans that fit, recomputation included, and are `alike`

    @property
    def rounds(self) -> int:
        """How many there are."""
        return count_rounds(self.result.schedule.rounds)

    def alike(self, on: str) -> str:
        """What the plans that a bound covers have in common with this one, in words."""
        return alike(self.result.problem, self.result.schedule.chunk, on)

    @property
    def over_ideal(self) -> float | None:
        """(makespan - ideal) / ideal; None without computation."""
        return max(0.0, self.result.makespan / self.ideal - 1) if self.ideal > 0 else None

    @property
    def any_gap(self) -> float | None:
        """(makespan - any_bound) / any_bound: at most this far from the best possible plan."""
        if self.result.makespan <= self.any_bound * _EQUAL:
            return 0.0
        return self.result.makespan / self.any_bound - 1 if self.any_bound > 0 else None

    @property
    def standing(self) -> str:
        """What is proven: "optimal" among all plans, "best" among those that run each op once, or "near"."""
        if self.any_gap == 0.0:
            return "optimal"
        return "best" if self.result.makespan <= self.result.lower_bound * _EQUAL else "near"

    def to_json(self) -> dict[str, Any]:
        """The figures of the result and of the summary."""
        result = self.result
        own = ("planner", "params", "makespan", "lower_bound", "bound_on", "gap", "optimal", "peak_memory", "estimate")
        return {
            "problem": result.problem.name,
            "device": result.device.to_json(),
            "rounds": [list(pair) for pair in result.schedule.rounds],
            "chunk": result.schedule.chunk,
            "budget": budget_of(result),
            "resident": result.graph.resident,
            **fields(result, *own, "runtime", "offloaded", "recomputed"),
            **fields(self, "any_bound", "any_gap", "ideal"),
            **fields(result.timeline, "bytes_out", "bytes_in", "idle", "recompute_time"),
        }


def summarize(result: Result) -> Summary:
    """The summary of a result."""
    problem, schedule = result.problem, result.schedule
    device = make_device(budget_of(result), None, result.device)
    bound = bound_of(problem, schedule, device, "all")
    return Summary(
        result=result,
        ideal=over_rounds(problem, schedule, lambda one: _core.graph_bounds(one, device, device.memory)[0]),
        any_bound=certified(max(bound, result.lower_bound if result.bound_on == "all" else 0.0), result.makespan),
    )

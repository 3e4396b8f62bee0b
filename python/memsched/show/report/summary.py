"""What a report says of one result: its figures, and what is proven about them in plain words, as HTML."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any

from memsched import _core
from memsched._core import Device
from memsched.problems.bounds import alike, bound_of, certified, over_rounds
from memsched.problems.family import count_rounds
from memsched.problems.problem import altered
from memsched.result import Result
from memsched.show.arena import budget_of
from memsched.show.report.tables import number
from memsched.support.documents import fields
from memsched.support.units import format_link

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
    device = altered(result.device, memory=budget_of(result))
    bound = bound_of(problem, schedule, device, "all")
    return Summary(
        result=result,
        ideal=over_rounds(problem, schedule, lambda one: _core.graph_bounds(one, device, device.memory)[0]),
        any_bound=certified(max(bound, result.lower_bound if result.bound_on == "all" else 0.0), result.makespan),
    )


def verdict(result: Result, summary: Summary) -> str:
    """How good the plan is proven to be."""
    same = summary.alike("all")
    if summary.standing == "optimal":
        return f"proven optimal: no plan{same} within this budget is faster"
    gap = summary.any_gap
    words = (
        f"within {number('percent', gap)} of any plan{same}" if gap is not None else "no bound on other plans is known"
    )
    if result.bound_on == "all" or result.lower_bound <= summary.any_bound:
        return words
    if summary.standing == "best":
        return f"proven best among plans{summary.alike('once')} that run each op once; {words} at all"
    return f"{words}, and within {number('percent', result.gap)} of any that runs each op once"


def described_link(device: Device) -> str:
    """The link of a device."""
    text = format_link(device, number)
    return f"{text} (device {escape(device.name)})" if device.name else text


def tile(title: str, value: str, note: str, share: float | None = None) -> str:
    """A figure with its title and meaning; `share`, of a whole, is drawn as a meter."""
    meter = "" if share is None else f'<div class="meter"><i style="width:{100 * min(1.0, share):.2f}%"></i></div>'
    words = f'<p class="title">{title}</p><p class="value">{value}</p>{meter}<p class="sub">{note}</p>'
    return f'<div class="tile">{words}</div>'


def tiles(result: Result, summary: Summary) -> str:
    """The main figures, each with its meaning."""
    timeline, budget = result.timeline, budget_of(result)
    over = summary.over_ideal
    ideal = f"{number('seconds', summary.ideal)} of computation"
    found = [
        tile(
            "Makespan",
            number("seconds", result.makespan),
            ideal if over is None else f"{number('percent', over)} over {ideal}",
        ),
        tile(
            "Lower bound",
            number("seconds", result.lower_bound),
            "the makespan meets it" if result.optimal else f"gap {number('percent', result.gap)}, of {result.bounded}",
        ),
        tile(
            "Peak memory",
            number("bytes", result.peak_memory),
            f"of a budget of {number('bytes', budget)}",
            result.peak_memory / budget,
        ),
        tile(
            "Moved",
            number("bytes", timeline.bytes_out + timeline.bytes_in),
            f"{number('bytes', timeline.bytes_out)} out, {number('bytes', timeline.bytes_in)} in"
            if timeline.bytes_out + timeline.bytes_in
            else "nothing travels",
        ),
        tile(
            "Recomputed",
            number("seconds", timeline.recompute_time),
            f"{number('count', len(result.recomputed))} ops run again" if result.recomputed else "every op runs once",
        ),
        tile("Idle", number("seconds", timeline.idle), "of the compute stream"),
    ]
    return "".join(found)

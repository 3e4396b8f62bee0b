"""What a report says of one result: its figures, and what is proven about them in plain words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from memsched._core import Device
from memsched.problems.bounds import alike, bound_of, certified, ideal_time
from memsched.problems.family import count_rounds
from memsched.problems.problem import altered
from memsched.result import Result, above
from memsched.show.arena import budget_of
from memsched.show.text import Number, Text, text
from memsched.show.words import again, bounded, moved
from memsched.support.documents import fields
from memsched.support.formats import format_link

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
        return above(self.ideal, self.result.makespan) if self.ideal > 0 else None

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
        ideal=ideal_time(problem, schedule),
        any_bound=certified(max(bound, result.lower_bound if result.bound_on == "all" else 0.0), result.makespan),
    )


def verdict(result: Result, summary: Summary) -> Text:
    """How good the plan is proven to be."""
    same = summary.alike("all")
    if summary.standing == "optimal":
        return text("proven optimal: no plan{} within this budget is faster", same)
    gap = summary.any_gap
    words = text("no bound on other plans is known")
    if gap is not None:
        words = text("within {} of any plan{}", Number("percent", gap), same)
    if result.bound_on == "all" or result.lower_bound <= summary.any_bound:
        return words
    if summary.standing == "best":
        return text("proven best among plans{} that run each op once; {} at all", summary.alike("once"), words)
    return text("{}, and within {} of any that runs each op once", words, Number("percent", result.gap))


def described_link(device: Device) -> Text:
    """The link of a device."""
    numbers: list[Number] = []

    def place(kind: str, value: float) -> str:
        numbers.append(Number(kind, value))
        return "{}"

    link = text(format_link(device, place), *numbers)
    return text("{} (device {})", link, device.name) if device.name else link


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """A figure with its title and meaning; `share`, of a whole, is drawn as a meter."""

    title: str
    number: Number
    note: Text
    share: float | None = None


def tiles(result: Result, summary: Summary) -> list[Tile]:
    """The main figures, each with its meaning."""
    timeline, budget = result.timeline, budget_of(result)
    over = summary.over_ideal
    side = "less than" if over is not None and over < 0 else "over"
    ideal = text("{} of computation", Number("seconds", summary.ideal))
    return [
        Tile(
            title="Makespan",
            number=Number("seconds", result.makespan),
            note=ideal if over is None else text(f"{{}} {side} {{}}", Number("percent", abs(over)), ideal),
        ),
        Tile(title="Lower bound", number=Number("seconds", result.lower_bound), note=bounded(result)),
        Tile(
            title="Peak memory",
            number=Number("bytes", result.peak_memory),
            note=text("of a budget of {}", Number("bytes", budget)),
            share=min(1.0, result.peak_memory / budget),
        ),
        Tile(
            title="Moved",
            number=Number("bytes", timeline.bytes_out + timeline.bytes_in),
            note=moved(timeline.bytes_out, timeline.bytes_in),
        ),
        Tile(
            title="Recomputed",
            number=Number("seconds", timeline.recompute_time),
            note=again(len(result.recomputed)),
        ),
        Tile(title="Idle", number=Number("seconds", timeline.idle), note=text("of the compute stream")),
    ]

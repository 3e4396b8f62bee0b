"""A result in plain words, as HTML, every number with its exact value."""

from __future__ import annotations

from html import escape

from memsched._core import Device
from memsched.problems.problem import Problem, name_of
from memsched.result import Result
from memsched.show.arena import budget_of
from memsched.show.report.summary import Summary
from memsched.show.report.tables import number
from memsched.support.units import format_link


def named(problem: Problem) -> str:
    """The name of a problem."""
    return escape(name_of(problem))


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
    return f'<div class="tile"><h4>{title}</h4><p class="value">{value}</p>{meter}<p class="sub">{note}</p></div>'


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

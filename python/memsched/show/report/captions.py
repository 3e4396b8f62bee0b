"""What each picture of a report shows, in a sentence: for readers who cannot see it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from memsched.arena.placement import Placement
from memsched.arena.residency import placement_of
from memsched.problems.problem import largest_graph
from memsched.result import Result
from memsched.show.arena import budget_of, round_end
from memsched.show.report.comparison import Study
from memsched.show.report.tensors import FATES, TensorUse
from memsched.show.text import Number, Text, counted, joined, text
from memsched.study.sweep.rows import ReadRow as Row
from memsched.support.types import VERBS


def captions(result: Result, uses: list[TensorUse], study: Study | None) -> dict[str, Text]:
    """The picture's kind -> its caption, empty for a picture that the page does not have."""
    return {
        "timeline": _timeline(result),
        "lifetimes": _lifetimes(uses),
        "addresses": _addresses(result),
        "frontier": _frontier(result, study) if study is not None and study.curves else (),
    }


def _timeline(result: Result) -> Text:
    steps = result.schedule.steps
    counts = {verb: sum(verb in step for step in steps) for verb in VERBS}
    travels = text("nothing travels")
    if counts["offload"] or counts["prefetch"]:
        travels = text("{} and {}", counted(counts["offload"], "offload"), _prefetches(counts["prefetch"]))
    there = text(", {} on the host", counted(counts["update"], "update")) if counts["update"] else ()
    return text(
        "{} on the compute stream in {}{}; {}. Memory peaks at {} of a budget of {}.",
        *(counted(counts["run"], "run"), Number("seconds", round_end(result)), there, travels),
        *(Number("bytes", result.peak_memory), Number("bytes", budget_of(result))),
    )


def _prefetches(count: int) -> Text:
    return text("{} {}", Number("count", count), "prefetch" if count == 1 else "prefetches")


def _lifetimes(uses: list[TensorUse]) -> Text:
    fates = [use.fate for use in uses]
    told = [text("{} {}", Number("count", fates.count(fate)), fate) for fate in FATES if fate in fates]
    return text("{} in the order of their first appearance: {}.", counted(len(fates), "tensor"), joined(told))


def _addresses(result: Result) -> Text:
    schedule = result.schedule
    placement = result.placement or placement_of(schedule, largest_graph(result.problem, schedule))
    return () if placement is None else address_caption(placement)


def address_caption(placement: Placement) -> Text:
    """Of the addresses in an arena."""
    proven = "the claimed" if placement.claimed else "the proven"
    if placement.height == placement.lower_bound:
        bound = text(", {} lowest", proven)
    else:
        bound = text("; {} lower bound is {}", proven, Number("bytes", placement.lower_bound))
    return text(
        "{} in an arena of {}{}. Fragmentation is {}.",
        *(counted(len(placement.buffers), "buffer"), Number("bytes", placement.height), bound),
        Number("percent", placement.fragmentation),
    )


def _frontier(result: Result, study: Study) -> Text:
    curves = [one for one in study.curves if any(one.results)]
    ends = [int(memory) for one in curves for memory, found in zip(one.memory, one.results, strict=True) if found]
    own = text("This plan takes {} with {}.", Number("seconds", result.makespan), Number("bytes", budget_of(result)))
    if not ends:
        return text("No planner with a curve has a plan. {}", own)
    return text(
        "Makespans of {} from {} to {} of memory. {}",
        *(", ".join(one.planner for one in curves), Number("bytes", min(ends)), Number("bytes", max(ends)), own),
    )


def sweep_caption(rows: Sequence[Row], names: Sequence[tuple[str, str, str]]) -> Text:
    """Of the curves of a sweep; empty if nothing is planned."""
    planned = [(row, name) for row, name in zip(rows, names, strict=True) if row["status"] == "planned"]
    if not planned:
        return ()
    ratios = [row["makespan"] / row["ideal"] for row, _ in planned if row["ideal"]]
    count = counted(len({name[0] for _, name in planned}), "planner")
    drawn = text("In the whole sweep, {} of {}", counted(len(planned), "plan"), count)
    if not ratios or not math.isfinite(max(ratios)):
        return text("{}.", drawn)
    span = (Number("ratio", min(ratios)), Number("ratio", max(ratios)))
    return text("{} take {} to {} times as long as computation alone.", drawn, *span)

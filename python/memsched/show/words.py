"""The figures of a plan in words, the same on the command line, in notebooks and in reports."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from memsched._core import Schedule
from memsched.problems.bounds import BOUND_ON, ROUNDING, ideal_time
from memsched.problems.budget import told_bytes
from memsched.problems.problem import peak_memory
from memsched.result import Result
from memsched.show.text import Number, Text, counted, text
from memsched.study.comparison import Comparison
from memsched.study.fit import Fit, Way
from memsched.study.frontier import Frontier
from memsched.study.sweep.table import Sweep
from memsched.support.formats import enough_bytes, format_bytes, format_percent, format_seconds, unit_written
from memsched.validation.plan import ValidationReport


def moved(out: int, back: int) -> Text:
    """The bytes that travel."""
    if out or back:
        return text("{} out, {} in", Number("bytes", out), Number("bytes", back))
    return text("nothing travels")


def again(ops: int) -> Text:
    """How many ops run more than once."""
    if ops:
        return text("{} run{} again", counted(ops, "op"), "s" if ops == 1 else "")
    return text("every op runs once")


def recomputed(ops: int, seconds: float) -> Text:
    """The same with the time that it takes."""
    return text("{}, {}", again(ops), Number("seconds", seconds)) if ops else again(ops)


def time_of(way: Way) -> str:
    """The time of a way to run a training step, and whether it fits."""
    time = "" if way.makespan is None else format_seconds(way.makespan)
    return time if way.fits else f"{time} if it fit" if time else "at least, does not fit"


def bounded(result: Result) -> Text:
    """Which plans the lower bound covers, and how far above it the plan is."""
    gap = "proven optimal" if result.optimal else f"gap {format_percent(result.gap)}"
    return text("of {}: {}", result.bounded, gap if result.lower_bound > 0 or result.optimal else "no bound is known")


def of_plain_run(result: Result) -> Text:
    """What the step takes that keeps everything, and how much longer, or less with the host's help, the plan takes."""
    ideal = ideal_time(result.problem, result.schedule)
    held = text("{} in {}", Number("seconds", ideal), Number("bytes", peak_memory(result.problem)))
    if not 0.0 < ideal < math.inf:
        return held
    more = result.makespan / ideal - 1
    if more < -ROUNDING:
        return text("{}; the plan takes {} less", held, Number("percent", -more))
    return text("{}; the plan takes {} longer", held, Number("percent", more)) if more > 0 else held


def held_against(figure: str, outcomes: Iterable[tuple[str, object]], *, shared: bool = True) -> str:
    """Which plans the bounds of planners cover, to explain a figure above a bound; "" where there is none.

    Shared: what one planner proves counts for all.
    """
    covers: dict[str, dict[str, None]] = {}
    for name, one in outcomes:
        if isinstance(one, Result):
            covers.setdefault(one.bounded, {})[name] = None
    times = Counter(name for names in covers.values() for name in names)
    parts = [
        plans if len(covers) < 2 else f"{plans} ({', '.join(f'{by} in part' if times[by] > 1 else by for by in names)})"
        for plans, names in covers.items()
    ]
    bound = "the largest bound that any of these planners proves" if shared and len(times) > 1 else "the bound"
    return f"{figure}: to {bound} on {', on '.join(parts)}" if parts else ""


def kinds_of_gaps(rows: Iterable[Mapping[str, Any]]) -> str:
    """What the bounds in the rows of a sweep are on, if they are of two kinds; else ""."""
    planners: dict[str, set[str]] = {on: set() for on in BOUND_ON}
    for row in rows:
        if row.get("bound_on") in planners:
            planners[row["bound_on"]].add(row["planner"])
    if not all(planners.values()):
        return ""
    whole, once = (", ".join(sorted(planners[on])) for on in ("all", "once"))
    return (
        f"gap: to the bound on all plans ({whole}) or on those that run each op once ({once}), as bound_on of a row "
        "says; compare gaps within a kind"
    )


def from_one_table(names: Iterable[str]) -> str:
    """What to know of planners that answered many memories from one table; "" if there are none."""
    said = ", ".join(dict.fromkeys(names))
    return said and (
        f"one table for all memories: {said}; one plan by itself has a table of its own, and may be some percent "
        "faster or slower"
    )


def table_answers(found: Frontier) -> bool:
    """Whether the plans of a frontier are from one table."""
    return any(one is not None and "table_slots" in one.params for one in found.results)


def unit_of(shown: object) -> str:
    """The unit in which the memory of what is shown was written; of several, the first that has one."""
    if isinstance(shown, Comparison):
        return unit_of(list(shown.values()))
    if isinstance(shown, Sequence | Sweep):
        return next(filter(None, map(unit_of, shown)), "")
    if isinstance(shown, Frontier):
        return next(filter(None, map(unit_written, shown.memory.tolist())), "")
    if isinstance(shown, Mapping):  # a row of a sweep
        return unit_written(shown["memory"])
    if isinstance(shown, Result):
        return unit_written(shown.device)
    if isinstance(shown, Schedule | ValidationReport):
        return unit_written(shown.budget)
    return unit_written(shown.memory if isinstance(shown, Fit) else shown)


def needed(count: int, best: Result | None) -> str:
    """A memory that is enough, in the unit of the memory of the best of the other plans."""
    if best is None:
        return enough_bytes(count)
    return told_bytes(count, unit_written(best.device), best.problem, up=True).partition(" (")[0]


def unasked(others: Mapping[str, str]) -> list[str]:
    """The planners that were not asked, with the reason of each group."""
    groups = {reason: [name for name in others if others[name] == reason] for reason in others.values()}
    return [f"{', '.join(names)} ({reason})" for reason, names in groups.items()]


def plain(words: Text, unit: str = "") -> str:
    """The words and figures as one text; bytes are in a unit like this one."""
    return "".join(_plain(part, unit) for part in words)


def _plain(part: str | Number, unit: str) -> str:
    if isinstance(part, str):
        return part
    return format_bytes(part.value, unit) if part.kind == "bytes" else part.shown

"""What is told of a value of each class in a few rows: where it is printed and in notebooks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from memsched import _core
from memsched._core import Chain, Device, Graph, Schedule, Timeline
from memsched.arena.order import Order
from memsched.arena.placement import Placement
from memsched.errors import InfeasibleError, InvalidInputError
from memsched.planners.registry import min_memory
from memsched.problems.bounds import Bounds
from memsched.problems.family import GraphFamily, count_rounds
from memsched.problems.problem import graph_of, name_of, peak_memory, profile_link, stages_or_ops
from memsched.result import Result, as_fast
from memsched.show.arena import budget_of, lowest
from memsched.show.report.sweep_rows import standings
from memsched.show.words import (
    again,
    bounded,
    from_one_table,
    held_against,
    moved,
    needed,
    of_plain_run,
    plain,
    recomputed,
    table_answers,
    time_of,
    unit_of,
)
from memsched.study.comparison import Comparison
from memsched.study.fit import LARGER, Fit
from memsched.study.frontier import Frontier
from memsched.study.sweep.names import problem_of
from memsched.study.sweep.table import Sweep
from memsched.support.formats import (
    counted,
    enough_bytes,
    format_bandwidth,
    format_bound,
    format_bytes,
    format_link,
    format_percent,
    format_seconds,
    written_like,
)
from memsched.support.types import VERBS
from memsched.validation.plan import ValidationReport

_MOST_ROWS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A title, rows of cells, and a note below. A row with fewer cells than the head ends with words."""

    title: str
    rows: Sequence[tuple[str, ...]]
    head: tuple[str, ...] = ()  # none: each row is a name and words
    note: str = ""
    best: frozenset[int] = frozenset()  # rows to stress


def table_of(shown: object) -> Table:
    """What is told of a value."""
    with written_like(unit_of(shown)):
        table: Table = known_of(_TABLES, shown)(shown)
    return table


def known_of(known: Mapping[type, Any], shown: object) -> Any:
    """What is known for the class of a value, or for the first that it derives from."""
    return next((known[kind] for kind in type(shown).__mro__ if kind in known), None)


def _chain(chain: Chain) -> Table:
    forward, backward = float(chain.forward_time.sum()), float(chain.backward_time.sum())
    seconds = f"{format_seconds(forward)} forward, {format_seconds(backward)} backward"
    link = profile_link(chain)
    rows = {
        "computation": f"{format_seconds(forward + backward)}: {seconds}",
        **_memories(chain),
        **({} if link is None else {"link": format_bandwidth(link)}),
    }
    return Table(title=f"{name_of(chain)}: a chain of {stages_or_ops(chain)}", rows=[*rows.items()])


def _graph(graph: Graph) -> Table:
    tensors = [int(one["size"]) for one in graph.tensors if one["size"] > 0]
    rows = {
        "computation": format_seconds(_core.compute_time(graph)),
        "tensors": f"{len(tensors)}, {format_bytes(sum(tensors))}",
        **_memories(graph),
    }
    return Table(title=f"{name_of(graph)}: a graph of {stages_or_ops(graph)}", rows=[*rows.items()])


def _family(family: GraphFamily) -> Table:
    rows = {"batches": f"up to {family.batch}", **_memories(family)}
    title = f"{name_of(family)}: graphs of {counted(len(family.graph.ops), 'op')}, one for each batch"
    return Table(title=title, rows=[*rows.items()])


def _memories(problem: Chain | Graph | GraphFamily) -> dict[str, str]:
    least, most = enough_bytes(min_memory(problem)), format_bytes(peak_memory(problem))
    return {
        "memory": f"{least} at least, {most} in the plain run",
        "resident": format_bytes(graph_of(problem).resident),
    }


def _schedule(schedule: Schedule) -> Table:
    counts = Counter(verb for step in schedule.steps for verb in VERBS if verb in step)
    rows = {
        "steps": ", ".join(f"{count} {verb}" for verb, count in counts.items()),
        "offloaded": counted(len(schedule.offloaded), "tensor"),
        "recomputed": plain(again(len(schedule.recomputed))),
        "budget": format_bytes(schedule.budget),
    }
    name = schedule.planner.get("name", "an unnamed planner")
    of = f" for {schedule.graph}" if schedule.graph else ""
    return Table(title=f"a plan by {name}{of}", rows=[*rows.items()])


def _device(device: Device) -> Table:
    rows = {"memory": format_bytes(device.memory), "link": format_link(device)}
    return Table(title=device.name or "a device", rows=[*rows.items()])


def _timeline(found: Timeline) -> Table:
    rows = {
        "makespan": format_seconds(found.makespan),
        "peak": format_bytes(found.peak_memory),
        "moved": plain(moved(found.bytes_out, found.bytes_in)),
        "idle": f"{format_seconds(found.idle)} of the compute stream",
        "recomputed": format_seconds(found.recompute_time),
    }
    return Table(title=f"a timeline of {counted(len(found.start), 'step')}", rows=[*rows.items()])


def _result(result: Result) -> Table:
    schedule, timeline = result.schedule, result.timeline
    rounds = count_rounds(schedule.rounds)
    rows = {
        "memory": format_bytes(budget_of(result)),
        "link": format_link(result.device) + _unused_link(result),
        "makespan": format_seconds(result.makespan),
        "plain run": plain(of_plain_run(result)),
        "lower bound": f"{format_seconds(result.lower_bound)} {plain(bounded(result))}",
        "peak": format_bytes(result.peak_memory),
        "moved": plain(moved(timeline.bytes_out, timeline.bytes_in)),
        "recomputed": plain(recomputed(len(result.recomputed), timeline.recompute_time)),
        **({"rounds": f"{rounds}, of batch {_listed(batch for batch, _ in schedule.rounds)}"} if rounds > 1 else {}),
        **({"planned in": format_seconds(result.runtime, 2)} if result.runtime else {}),  # one of your own: by nobody
    }
    return Table(title=f"{result.planner} on {name_of(result.problem)}", rows=[*rows.items()])


def _unused_link(result: Result) -> str:
    """That a chain of a profile knows a link, and the plan has none."""
    link = None
    with suppress(InvalidInputError):  # of a chain that says of itself what it likes
        link = profile_link(result.problem)
    unused = link is not None and result.device.d2h == result.device.h2d == 0
    return f"; the profile's is {format_bandwidth(link)}: give it as beta" if unused and link is not None else ""


def _listed(numbers: Iterable[object]) -> str:
    return " and ".join(dict.fromkeys(map(str, numbers)))


def _comparison(found: Comparison) -> Table:
    plans = {name: one for name, one in found.items() if isinstance(one, Result)}
    best = found.best
    rows: list[tuple[str, ...]] = []
    for name, one in found.items():
        if isinstance(one, Result):
            rows.append((name, *_figures(one), format_seconds(one.runtime, 2)))
        elif isinstance(one, InfeasibleError):
            rows.append((name, f"no plan; fits in {needed(one.min_memory, best)}"))
        else:
            rows.append((name, f"failed: {one}"))
    least = best.makespan if best else 0.0
    head = ("planner", "makespan", "gap", "peak", "moved", "recomputed", "planned in")
    return Table(
        title=f"{name_of(best.problem)}, {_machine(best.device)}" if best else "no planner has a plan",
        head=head,
        rows=rows,
        note=held_against("gap", found.items())
        or ("gap: above a lower bound on the plans that the planner can make" if plans else ""),
        best=frozenset(k for k, name in enumerate(found) if name in plans and as_fast(plans[name].makespan, least)),
    )


def _machine(device: Device) -> str:
    return f"{format_bytes(device.memory)}, {format_link(device)}"


def _figures(one: Result) -> tuple[str, ...]:
    timeline = one.timeline
    return (
        format_seconds(one.makespan),
        "optimal" if one.optimal else format_percent(one.gap) if one.lower_bound > 0 else "",
        format_bytes(one.peak_memory),
        format_bytes(timeline.bytes_out + timeline.bytes_in),
        counted(len(one.recomputed), "op") if one.recomputed else "0",
    )


def _frontier(found: Frontier) -> Table:
    count = len(found.results)
    most = min(count, _MOST_ROWS)
    chosen = [k * (count - 1) // max(1, most - 1) for k in range(most)]
    rows: list[tuple[str, ...]] = []
    for k in chosen:
        one, memory = found.results[k], enough_bytes(int(found.memory[k]))
        rows.append((memory, "no plan found") if one is None else (memory, *_figures(one)))
    host = isinstance(found.problem, Graph) and _core.without_host(found.problem) is not None
    note = f"ideal: {format_seconds(found.ideal)}, with enough memory{' and all on the device' if host else ''}"
    if most < count:
        note += f"; {most} of {count} memories are shown"
    if table_answers(found):
        note += f"\n{from_one_table([found.planner])}"
    return Table(
        title=f"{found.planner} on {name_of(found.problem)}, {format_link(found.device)}",
        head=("memory", "makespan", "gap", "peak", "moved", "recomputed"),
        rows=rows,
        note=note,
    )


def _fit(found: Fit) -> Table:
    rows: list[tuple[str, ...]] = []
    for one in found.ways:
        largest = [] if not found.searched else ["not sought"] if one.largest is None else [str(one.largest)]
        spare = one.note == LARGER  # what it needs for this batch is of no use
        costs = ("not needed", "") if spare else (format_bytes(one.peak_memory), time_of(one))
        rows.append((one.name, *costs, *largest))
    verdict = "fit" if found.fits else "do not fit"
    return Table(
        title=f"{found.name}: {format_bytes(found.peak_memory)} {verdict} into {format_bytes(found.memory)}",
        head=("way", "peak memory", "time", *([f"largest {found.searched}"] if found.searched else [])),
        rows=rows,
        note="\n".join([found.next_step, found.times, *found.notes]),
    )


def _sweep(found: Sweep) -> Table:
    rows = [(one.name, *map(str, (one.planned, one.infeasible, one.failed, one.best))) for one in standings(found.rows)]
    note = "fastest: where no other planner was faster" + (
        "; the file that was read claims it" if found.claimed else ""
    )
    if tabled := sorted({row["planner"] for row in found if row["table_slots"] is not None}):
        note += f"\n{from_one_table(tabled)}"
    return Table(
        title=f"{counted(len(found), 'point')} of {counted(len({problem_of(row) for row in found.rows}), 'problem')}",
        head=("planner", "planned", "infeasible", "failed", "fastest"),
        rows=rows[:_MOST_ROWS],
        note=note if len(rows) <= _MOST_ROWS else f"{_MOST_ROWS} of {len(rows)} planners are shown; {note}",
    )


def _order(found: Order) -> Table:
    bound = "no order has less" if found.optimal else f"no order has less than {format_bytes(found.lower_bound)}"
    rows = {
        "peak": f"{format_bytes(found.peak_memory)}, {bound}",
        "ops": _beginning(found.order),
        "found by": f"{found.method}, in {format_seconds(found.runtime, 2)}",
    }
    return Table(title=f"order of {counted(len(found.order), 'op')}", rows=[*rows.items()])


def _beginning(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f", .. {names[-1]}" if len(names) > 4 else "")


def _placement(found: Placement) -> Table:
    rows = {
        "height": f"{format_bytes(found.height)}, {lowest(found)}",
        "load": format_bytes(found.load),
        "fragmentation": format_percent(found.fragmentation),
        "found by": f"{found.method}, in {format_seconds(found.runtime, 2)}",
    }
    return Table(title=f"addresses of {counted(len(found.buffers), 'buffer')}", rows=[*rows.items()])


def _covers(seconds: float, plans: str) -> str:
    """A bound, and the plans that it covers."""
    return f"none fits, {plans}" if seconds == math.inf else f"{format_bound(seconds)} {plans}"


def _bounds(found: Bounds) -> Table:
    once = "of all plans" if found.bound_on == "all" else "of plans that run each op once"
    whole = "of all plans with whole tensors"
    best = _covers(found.best, whole if found.best == found.recompute else once)
    if found.best < found.recompute:
        best += f", also in pieces; {_covers(found.recompute, whole)}"
    elif found.recompute < found.best < math.inf:
        best = f"{_covers(found.recompute, whole)}; {best}"
    rows = {
        "best": best,
        "compute": f"{format_bound(found.compute)} of all plans",
        "transfer": _covers(found.transfer, once),
        "fractional": _covers(found.fractional, once),
        "recompute": _covers(found.recompute, whole),
    }
    if found.interruptible is not None:
        proven = "" if found.interruptible_proven else ", or more"
        rows["interruptible"] = f"{format_bound(found.interruptible)}{proven}, of the model of that name"
    return Table(title="lower bounds", rows=[*rows.items()])


def _validation(found: ValidationReport) -> Table:
    rows = {
        "makespan": format_seconds(found.makespan),
        "lower bound": f"{format_seconds(found.lower_bound)} of {found.bounded}",
        "peak": f"{format_bytes(found.peak_memory)} of {format_bytes(found.budget)}",
        "moved": plain(moved(found.bytes_out, found.bytes_in)),
        "recomputed": plain(recomputed(len(found.recomputed), found.recompute_time)),
    }
    if found.claimed_lower_bound is not None:
        confirmed = "confirmed" if found.proven else "not confirmed"
        rows["claimed bound"] = f"{format_seconds(found.claimed_lower_bound)}, {confirmed}"
    return Table(title=f"a valid plan of {counted(len(found.start), 'step')}", rows=[*rows.items()])


_TABLES: Mapping[type, Callable[[Any], Table]] = {
    Bounds: _bounds,
    Chain: _chain,
    Comparison: _comparison,
    Device: _device,
    Fit: _fit,
    Frontier: _frontier,
    Graph: _graph,
    GraphFamily: _family,
    Order: _order,
    Placement: _placement,
    Result: _result,
    Schedule: _schedule,
    Sweep: _sweep,
    Timeline: _timeline,
    ValidationReport: _validation,
}

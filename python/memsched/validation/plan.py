"""Check schedules independently of the simulator: naive, plain Python, on the JSON forms alone.

A schedule is checked three times. The replay (replay.py) goes through the list of steps once and proves that it is
legal and keeps its budget whatever the durations are. The execution (execution.py) plays the steps against a clock,
with one queue per stream and a memory test at every event. The check of intervals, beside it, looks only at what comes
out: streams are exclusive and in order, data is complete before it is used, and bytes (or address ranges) stay within
the budget.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from memsched.errors import InvalidInputError, ScheduleError, shown
from memsched.validation.bounds import Facts, bound_of_all, bound_of_once
from memsched.validation.cuts import bound_of_cut
from memsched.validation.execution import check_intervals, execute
from memsched.validation.pauses import pauses_to_come, until
from memsched.validation.replay import Json, Replay, is_natural
from memsched.validation.result import ROUNDING, Stay, check_result
from memsched.validation.steady import bound_of_period, check_steady, on_device

_PLAN_KEYS = {"border", "format", "planner", "graph", "chunk", "rounds", "budget", "memory", "steps"}
_TINY = 1e-300  # seconds; much smaller ones have too few digits for bounds to be rounded by a share of them


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationReport:
    """The findings of the checker, in seconds and bytes, summed over all rounds; start and end are of one round.

    Both peaks include the resident bytes: peak_memory is the peak over time, logical_peak the peak over the list in
    order. Neither is above budget, what the plan may use: the smaller of its budget and the device's memory.
    compute_time includes recompute_time.

    lower_bound is what the checker could derive itself. If bound_on is "all", no plan is faster (of a chain, among
    those that cut its tensors in the same way); if it is "once", no plan that runs each op once in graph order is.
    For a family both hold in the same rounds. bounded says it in words. claimed_lower_bound is the bound in a
    result; a plan alone claims none, and is held against the larger of the two if it is of both kinds.
    """

    makespan: float
    peak_memory: int
    logical_peak: int
    budget: int
    compute_time: float
    recompute_time: float
    bytes_out: int
    bytes_in: int
    recomputed: tuple[str, ...]
    start: tuple[float, ...]
    end: tuple[float, ...]
    lower_bound: float = 0.0
    bound_on: str = "all"
    bounded: str = "all plans"
    claimed_lower_bound: float | None = None

    @property
    def proven(self) -> bool:
        """Whether the checker could derive the full bound that the result claims."""
        return self.claimed_lower_bound is None or self.claimed_lower_bound <= self.lower_bound * (1 + ROUNDING)

    @property
    def optimal(self) -> bool:
        """Whether the derived lower_bound proves that no plan covered by it is faster."""
        return self.makespan <= self.lower_bound * (1 + 1e-12)

    def __repr__(self) -> str:
        return (
            f"ValidationReport(makespan={self.makespan:.6g}, lower_bound={self.lower_bound:.6g}, "
            f"bound_on={self.bound_on!r}, proven={self.proven}, peak_memory={self.peak_memory}, "
            f"recomputed={len(self.recomputed)}, steps={len(self.start)})"
        )


def _has_persistent(graph: Json) -> bool:
    return any(tensor["role"] == "persistent" for tensor in graph["tensors"])


def _check_head(graph: Json, plan: Json, device: Json) -> int:
    """Check everything but the steps; return how many times the graph runs."""
    for what, document in (("graph", graph), ("plan", plan), ("device", device)):
        form = f"memsched-{what}/1"
        if document.get("format", form) != form:
            raise ScheduleError(f"The {what} has format {document['format']!r}; give {form!r}.")
    for key in sorted({"rounds", "budget", "memory", "steps"} | set(plan)):
        if key not in plan or key not in _PLAN_KEYS:
            raise ScheduleError(f"The plan's key {key!r} is {'unknown' if key in plan else 'missing'}.")
    if plan["memory"] not in ("fluid", "contiguous") or not is_natural(plan["budget"]):
        given = f"memory {plan['memory']!r} and budget {plan['budget']!r}"
        raise ScheduleError(f"The plan has {given}; give fluid or contiguous, and a whole number of bytes.")
    batch, rounds = graph.get("batch", 1), plan["rounds"]
    pair = rounds[0] if isinstance(rounds, (list, tuple)) and len(rounds) == 1 else None
    numbers = list(pair) if isinstance(pair, (list, tuple)) and all(map(is_natural, pair)) else []
    if len(numbers) != 2 or numbers[0] != batch or numbers[1] < 1:
        raise ScheduleError(f"rounds is {rounds!r}; on this graph alone give [[{batch}, times]], times >= 1.")
    if _has_persistent(graph) and (numbers[1] > 1 or plan["memory"] == "contiguous"):
        text = f"memory {plan['memory']!r} and rounds {rounds!r}"
        raise ScheduleError(f"The plan has {text}; with persistent tensors give fluid, and one round.")
    return int(numbers[1])


def check_plan(graph: Json, plan: Json, device: Json) -> ValidationReport:
    """Check one plan on one graph and one device, all in their JSON forms.

    ScheduleError: the plan cannot run as written; `.step` is the index of the failing step, if there is one.
    """
    return checked(graph, plan, device)[0]


def checked(graph: Json, plan: Json, device: Json) -> tuple[ValidationReport, list[tuple[float, int]], list[Stay]]:
    """The report of one plan on one graph, the bytes after each event, and the lifetime of each buffer in steps."""
    times = _check_head(graph, plan, device)
    replay = Replay(graph, plan, device)
    resident = replay.budget - replay.capacity
    if replay.repeated:
        period, start = _steady_state(graph, plan, device)
        end = [moment + step.seconds for moment, step in zip(start, replay.steps, strict=False)]
        peak, curve = check_steady(replay, start, period)
    else:
        start, end = execute(replay)
        period = max(end, default=0.0)
        curve = [(moment, held) for moment, held, _ in check_intervals(replay, start, end)]
        peak = max(held for _, held in curve)
    steps = replay.steps[: replay.count]
    repeats = sorted((again, name) for name, runs in replay.runs.items() for again in runs[1:])
    sizes = [(step.verb, replay.tensors.get(step.name, 0)) for step in steps]
    memory = [(moment, held + resident) for moment, held in curve]
    last = len(steps) - 1
    stays = [(b.name, max(b.born, 0), 1 + (last if b.dies is None else b.dies), b.bytes) for b in replay.buffers]
    report = ValidationReport(
        makespan=times * period,
        peak_memory=peak + resident,
        logical_peak=replay.peak + resident,
        budget=replay.budget,
        compute_time=times * sum(step.seconds for step in steps if step.verb == "run"),
        recompute_time=times * sum(replay.steps[again].seconds for again, _ in repeats),
        bytes_out=times * sum(size for verb, size in sizes if verb == "offload"),
        bytes_in=times * sum(size for verb, size in sizes if verb == "prefetch"),
        recomputed=tuple(dict.fromkeys(name for _, name in repeats)),
        start=tuple(start),
        end=tuple(end),
    )
    return report, memory, stays


def _steady_state(graph: Json, plan: Json, device: Json) -> tuple[float, list[float]]:
    """A period and starts that the core claims; they are not trusted."""
    from memsched._core import Device, Graph, Schedule, steady_state

    return steady_state(Graph.from_json(dict(graph)), Schedule.from_json(dict(plan)), Device.from_json(dict(device)))


def validate(problem: Any, schedule: Any = None, device: Any = None) -> ValidationReport:
    """Check a schedule, or a whole result, without the simulator.

    Parameters
    ----------
    problem : Result, Chain, Graph or GraphFamily
        A result, whose figures and addresses are then checked too; or a problem, with the other two arguments.
    schedule, device : Schedule and Device
        Omitted when a result is given.

    Returns
    -------
    ValidationReport
        makespan (seconds, over all rounds), peak_memory (bytes, resident included), lower_bound and more. `proven` says
        whether a result's bound was confirmed. Other claims of the planner (estimate, runtime, params) cannot be
        checked.

    Raises
    ------
    ScheduleError
        The schedule cannot run (`.step` says where), or the result contradicts it.
    InvalidInputError
        An argument has the wrong type.

    Examples
    --------
    >>> import memsched as ms
    >>> result = ms.greedy(ms.Chain([1, 2], [2, 3], [4, 6, 5], [0, 6, 5]), 100, 1.0)
    >>> ms.validate(result).makespan
    8.0
    """
    result = None
    if schedule is None and device is None and hasattr(problem, "schedule"):
        result = problem
        problem, schedule, device = result.problem, result.schedule, result.device
    if hasattr(schedule, "schedule"):
        raise InvalidInputError(
            "schedule is a Result, which has a problem and a device of its own; give it alone, or its .schedule"
        )
    marks = {"problem": ("ops", "at", "forward_time"), "schedule": ("chunk",), "device": ("to_json",)}
    for name, value in (("problem", problem), ("schedule", schedule), ("device", device)):
        if isinstance(value, type) or not any(hasattr(value, mark) for mark in marks[name]):
            read = "; Result.load(path) reads one from a file" if isinstance(value, str) else ""
            raise InvalidInputError(
                f"{name} is {shown(value)}; give a Result, or a problem, a Schedule and a Device{read}"
            )
    if "d2h" not in device.to_json():
        raise InvalidInputError(f"device is {shown(device)}; it must be a Device")
    try:
        return _validated(problem, schedule, device, result)
    except ScheduleError as error:
        made_for, own = schedule.to_json()["graph"], getattr(problem, "name", None)
        if own in (None, made_for) or not made_for:
            raise
        raise ScheduleError(f"The plan was made for {made_for!r}, not for {own!r}. {error}", error.step) from None


def _validated(problem: Any, schedule: Any, device: Any, result: Any) -> ValidationReport:
    plan, machine = schedule.to_json(), device.to_json()
    graphs: dict[int, Json] = {}  # a family has one per batch
    if hasattr(problem, "at"):
        rounds = [(batch, times) for batch, times in plan["rounds"]]
        if sum(batch * times for batch, times in rounds) != problem.batch:
            raise ScheduleError(f"The rounds {rounds!r} do not add up to the batch, which is {problem.batch}.")
        graphs |= {batch: problem.at(batch).to_json() for batch, _ in rounds}
        both = {b: checked(graph, {**plan, "rounds": [[b, 1]]}, machine) for b, graph in graphs.items()}
    else:
        from memsched._core import to_graph

        graph = problem if hasattr(problem, "ops") else to_graph(problem, chunk=schedule.chunk)
        rounds, graphs[1] = [(1, 1)], graph.to_json()
        both = {1: checked(graphs[1], plan, machine)}
    alone = {batch: report for batch, (report, _, _) in both.items()}
    sums = ("makespan", "compute_time", "recompute_time", "bytes_out", "bytes_in")
    peaks = ("peak_memory", "logical_peak")
    totals: dict[str, Any] = {key: sum(times * getattr(alone[one], key) for one, times in rounds) for key in sums}
    totals |= {key: max(getattr(one, key) for one in alone.values()) for key in peaks}
    most = max(totals["bytes_out"], totals["bytes_in"])
    if most >= 2**63 or not math.isfinite(totals["makespan"]):
        text = f"take {totals['makespan']} seconds and move {most} bytes in one direction"
        raise ScheduleError(f"All rounds together {text}; give fewer rounds: times are finite and bytes below 2^63.")
    report = replace(alone[rounds[0][0]], **totals)
    if result is not None:
        check_result(result, report, both[rounds[0][0]][1], both[max(both)][2])
        report = replace(report, claimed_lower_bound=result.lower_bound, bound_on=result.bound_on)
    report = replace(report, lower_bound=_derived(graphs, rounds, machine, report))
    runs = [step["run"] for step in plan["steps"] if "run" in step]
    if result is None and all(runs == [op["name"] for op in graph["ops"]] for graph in graphs.values()):
        once = replace(report, bound_on="once")  # the plan is of both kinds
        once = replace(once, lower_bound=_derived(graphs, rounds, machine, once))
        report = once if once.lower_bound > report.lower_bound else report
    return replace(report, bounded=_covered(problem, plan["chunk"], report.bound_on))


def _covered(problem: Any, chunk: Any, on: str) -> str:
    """The plans that a bound covers, in words."""
    plans = "all plans" if on == "all" else "plans that run each op once, in graph order"
    if hasattr(problem, "at"):
        least = min(getattr(problem, "batches", None) or (1,))
        return f"{plans} in the same rounds" if least < problem.batch else plans
    if on == "once" or hasattr(problem, "ops"):
        return plans
    return f"{plans} {'with whole tensors' if chunk is None else 'in the same pieces'}"


def _derived(
    graphs: Mapping[int, Json], rounds: Sequence[tuple[int, int]], device: Json, report: ValidationReport
) -> float:
    """The bound that the checker derives itself; never above the measured makespan."""
    goal = report.makespan if report.claimed_lower_bound is None else report.claimed_lower_bound
    often = {batch: sum(times for one, times in rounds if one == batch) for batch in graphs}
    enough = goal / often[rounds[0][0]] if len(graphs) == 1 else math.inf  # the search stops at a known goal
    if report.bound_on == "once":
        bounds = {
            batch: bound_of_period if _has_persistent(graph) else bound_of_once for batch, graph in graphs.items()
        }
        found = math.fsum(often[batch] * bounds[batch](graph, device) for batch, graph in graphs.items())
        return min(found, report.makespan)
    found = math.fsum(often[batch] * bound_of_every_plan(graph, device, enough) for batch, graph in graphs.items())
    if found > report.makespan * (1 + ROUNDING) + _TINY:
        raise ScheduleError(f"The plan takes {report.makespan}, below its own lower bound {found}; please report this.")
    return min(found, report.makespan)


def bound_of_every_plan(graph: Json, device: Json, enough: float) -> float:
    """The largest of several bounds, or one that is enough. The core is asked for certificates."""
    if _has_persistent(graph):
        known = bound_of_period(graph, device)
        return known if known * (1 + ROUNDING) >= enough else max(known, _bound_of_cut(graph, device))
    found = _bound_of_cut(graph, device)
    if found * (1 + ROUNDING) < enough:
        op, rest = pauses_to_come(Facts(graph, device))
        found = max(found, _bound_of_cut(until(graph, op), device) + rest) if op >= 0 else found
    return found if found * (1 + ROUNDING) >= enough else max(found, bound_of_all(graph, device, enough))


def _bound_of_cut(graph: Json, device: Json) -> float:
    """The bound that a certificate of the core proves; if it has none, the time of the ops that the device must run."""
    from memsched._core import Device, Graph, cut_bound, cut_flows

    problem, machine = Graph.from_json(dict(graph)), Device.from_json(dict(device))
    _, op, price = cut_bound(problem, machine, machine.memory)
    if op < 0:
        facts = Facts(graph, device)
        return math.fsum(facts.time[k] for k in on_device(graph))
    return bound_of_cut(graph, device, op, *cut_flows(problem, op, price))

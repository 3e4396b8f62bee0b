"""Make a plan: by a planner of that name, or by "auto", which takes the best plan of all planners."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from operator import attrgetter
from typing import Any, cast

from memsched._core import Chain, Device, op_count
from memsched.errors import InfeasibleError, InvalidInputError, LimitError, MemschedError
from memsched.planners.call import LEAST_TIME, Draft, too_short, tried_until
from memsched.planners.entry import for_all, options_of, takes
from memsched.planners.registry import PLANNERS, check_planner, planners_of
from memsched.planners.remat.pebbles import pebbles, suits
from memsched.problems.bounds import bound_of, certified, graph_bound, recompute_bound
from memsched.problems.budget import make_device, told_bytes, told_memory
from memsched.problems.family import GraphFamily
from memsched.problems.problem import ChunkLike, Problem, fields_of, graph_of, least_memory
from memsched.result import Result
from memsched.study.ladder import below, reachable, size_of
from memsched.study.options import mapping, refuse_twice, refuse_unknown
from memsched.support import checks, quantities
from memsched.support.docstrings import documented
from memsched.support.formats import exact_bytes, format_bytes, format_percent, format_seconds, unit_written
from memsched.support.memo import once_per_object
from memsched.support.types import Quantity

MOVES = 300_000  # limit on the moves of auto's searches around plans of a chain, times stages; about 0.1 s
MOST_MOVES, MOVES_PER_STAGE = 8192, 512  # the same, of long and of short chains
FEW_PER_STAGE, FEWEST = 128, 12  # and of chains of so few stages, which more moves make no faster
WALKS = 4  # of selective on a chain
ALONE: dict[str, object] = {"moves": 3000, "walks": WALKS}  # of selective on a short graph that no other plans
SHORT = 24  # stages, or half the ops: up to here auto tries all rungs, or gives them half of its time limit
SEARCHES = ("offload", "selective", "pooch")  # these use all the time they get, and so come last, in this order
BY_THE_CLOCK = ("offload",)  # planners of chains that stop after a time by default, and after moves in auto
BEST = "selective"  # of all planners, where there is little time
LEAST_SHARE = 0.01  # seconds for a planner; 0 would mean no limit
SECONDS_AN_OP, BOUND = 1.2e-5, 8e-6  # that a plan of a large problem and its bound take, and the bound alone
Say = Callable[[str], object] | None
AUTO: dict[str, dict[str, object]] = {"modnn": {"rounds": "search"}, "pofo": {"anneal": True}}


@documented
def plan(
    problem: Problem,
    M: Quantity | None = None,
    beta: Quantity | None = None,
    *,
    device: Device | None = None,
    planner: str = "auto",
    chunk: ChunkLike = None,
    time_limit: Quantity | None = None,
    options: Mapping[str, Any] | None = None,
    progress: Say = None,
) -> Result:
    """Run one planner by name, or all of them and return the plan with the least simulated makespan.

    Parameters
    ----------
    problem : Chain, Graph or GraphFamily
    planner : str
        A planner's name, or "auto". auto runs all listed planners for such a problem, improves the plan of POFO or
        PoocH by a search, and also plans for smaller devices, since such plans run here too. Ties go to the planner
        registered first. If the best plan was made for a smaller device, params["planned_for"] names that device.
    time_limit : float or str, optional
        Seconds in total. In auto selective comes first and gets half, and each other planner an equal share of the time
        that is left when its turn comes. A planner that needs more for a first plan of thousands of ops is left out. Up
        to 24 stages, half of the time is for smaller devices. If time runs out before any planner has a plan, the
        remaining ones still get 0.15 s. By default, and with 0, auto's
        searches on chains stop after a number of moves, so that the plan does not depend on the machine, and PoocH's
        search stops after one second.
    options : mapping, optional
        Options of the planner that is named, such as {"slots": 2000} of pofo, as its function takes them.
    progress : callable, optional
        As `compare` takes it.

    Returns
    -------
    Result
        "auto" without time_limit is never worse than what `compare` lists for this device, searches that stop by the
        clock aside, such as PoocH's; with a time_limit it is the best plan found. With "auto", `lower_bound` holds for
        all plans, recomputation included (of a family, in the same rounds), and `runtime` is that of all planners
        together, less for a problem that was planned before, as plans for smaller devices are kept with it; otherwise
        both are of the named planner.

    Raises
    ------
    InfeasibleError
        No planner found a plan; `.min_memory` is the least that any of them names, and less may do. For graphs of up to
        64 ops and tensors, chains included, all plans are also searched, up to a number of steps, and the message says
        if that proves that there is no plan. For larger problems a plan may still exist.
    LimitError
        The time_limit is less than any plan of so many ops takes.

    Notes
    -----
    On a ladder of devices, more never gives a slower plan. Take two devices with the same duplex and latency, the
    second with at least the memory, bandwidth and host memory of the first. The second gets a plan that is no slower,
    provided that each of the three figures is a rung of the ladder for the first device or the same for both, and
    that both have the memory that rotor needs. docs/algorithms.md lists the rungs and says why nothing is promised in
    between. This holds for chains without a time_limit, and with 0 for chains of up to 24 stages and graphs of up to
    48 ops.

    Examples
    --------
    >>> import memsched as ms
    >>> chain = ms.Chain([1, 1, 1], [1, 1, 1], [4, 4, 4, 4], [0, 4, 4, 4])
    >>> ms.plan(chain, M=20, beta=8).planner
    'offload'
    """
    check_planner(planner)
    began = time.perf_counter()
    device, chunk = make_device(problem, M, beta, device), quantities.chunk(chunk)
    time_limit = quantities.time_limit(time_limit)
    shared = for_all(chunk=chunk, time_limit=time_limit)
    own = mapping("options", options, "option -> value")
    if planner == "auto" and own:
        raise InvalidInputError("options are those of one planner, and auto runs all; name the planner")
    refuse_unknown(planner, plan_of(planner), own)
    refuse_twice(own, chunk=chunk, time_limit=time_limit)
    graph_of(problem, chunk)  # refuses what no planner accepts, so that any later error belongs to one planner
    checks.progress(progress)
    if planner == "auto":
        with tried_until(began + time_limit) if time_limit else nullcontext():
            return _bounded(_best_of_ladder(problem, device, shared, progress), began)
    found = outcome(plan_of(planner), problem, device, {**shared, **own, **told(progress, planner, {})})
    if isinstance(found, MemschedError):
        raise found
    return found


def plan_of(planner: str) -> Callable[..., Result]:
    """The function that plans: a registered planner, or `plan` for "auto"."""
    check_planner(planner)
    return plan if planner == "auto" else PLANNERS[planner].plan


def _best_of_ladder(problem: Problem, device: Device, given: dict[str, object], progress: Say) -> Result:
    """The fastest plan of any planner for the device or a rung below it."""
    names, began = planners_of(problem), time.perf_counter()
    fixed = search_limits(problem) | {name: value for name, value in given.items() if name != "time_limit"}
    seconds, short = quantities.time_limit(given.get("time_limit")), size_of(problem) <= SHORT
    chunk = cast("ChunkLike", given.get("chunk"))
    alone = ALONE if len(names) == 1 and short and not seconds else {}
    if seconds:
        graph = graph_of(problem, chunk)
        if seconds < (needed := SECONDS_AN_OP * op_count(graph)) - LEAST_TIME:
            raise too_short(seconds, "auto", needed, graph)
        shared = seconds / 2 if short and len(names) > 1 else seconds
        found = _run_in_turn(problem, device, fixed, began + shared, progress)
    else:
        found, timed = {}, isinstance(problem, Chain) or not short or seconds is None
        for name in names:
            own = alone | _auto(name, fixed | given, timed=timed) | told(progress, name, found)
            found[name] = outcome(PLANNERS[name].plan, problem, device, own)
    if all(isinstance(one, InvalidInputError) for one in found.values()):
        raise _none_found(problem, device, found, seconds)
    until = math.inf if seconds is None or (short and seconds == 0) else began + seconds
    plans = [one for one in map(found.get, names) if isinstance(one, Result)]
    plans += _pebbles(problem, device, found, _left(until) if seconds else {})
    for rung in below(problem, device, partial(_least_makespan, plans), chunk, until):
        same_link = (rung.d2h, rung.h2d, rung.host_memory) == (device.d2h, device.h2d, device.host_memory)
        rest, none = graph_bound(graph_of(problem), rung), True
        told(progress, "smaller devices", dict(enumerate(plans)))
        for name in names:
            hopeful = PLANNERS[name].free or reachable(rest, problem) < _least_makespan(plans)
            if hopeful and time.perf_counter() < until and (same_link or PLANNERS[name].uses_link):
                as_alone = alone if seconds == 0 else {}  # so that the promise holds
                own = as_alone | _auto(name, fixed | _left(until), timed=until < math.inf)
                one = _draft(problem, name, rung, own)
                none = none and one is None
                _carry(one, problem, device, plans)
        if none or not isinstance(problem, Chain | GraphFamily):
            _carry(_draft(problem, "pebbles", rung, _left(until)), problem, device, plans)
    if plans:
        return min(plans, key=lambda one: (one.makespan, one.timeline.bytes_out + one.timeline.bytes_in))
    raise _none_found(problem, device, found, seconds)


def _run_in_turn(
    problem: Problem, device: Device, options: dict[str, object], until: float, progress: Say
) -> dict[str, Result | MemschedError]:
    """The outcome of each planner, where all are to finish when time.perf_counter() reaches `until`.

    The best planner comes first and gets half of the time, for on a large problem little else may end in time. Those
    that take no limit run next. Then the others run, each with an equal share of the time left; what one leaves goes to
    those after it, and the searches come last. Once there is a plan, and less time is left than the quickest took for
    one, the rest are skipped: reading a problem and simulating a plan takes each as long.
    """
    timed = {name: bool(takes(PLANNERS[name].plan, {"time_limit": 1.0})) for name in planners_of(problem)}
    names = sorted(timed, key=lambda name: (timed[name], SEARCHES.index(name) + 1 if name in SEARCHES else 0))
    names.sort(key=lambda name: name != BEST)
    graph = graph_of(problem, cast("ChunkLike", options.get("chunk")))
    found: dict[str, Result | MemschedError] = {}
    quickest = math.inf
    for at, name in enumerate(names):
        left = until - time.perf_counter()
        if left <= quickest < math.inf or left <= -LEAST_TIME:
            break
        needed = PLANNERS[name].least_time(graph, device)
        if left <= needed and quickest < math.inf:
            continue
        parts = min(2, len(names)) if at == 0 and name == BEST else len(names) - at
        share = max(needed, left / parts)  # and no more than is left:
        own = _auto(name, options | {"time_limit": max(LEAST_SHARE, min(share, left))}) | told(progress, name, found)
        found[name] = one = outcome(PLANNERS[name].plan, problem, device, own)
        if name == BEST and isinstance(one, LimitError):
            until -= BOUND * op_count(graph)  # which it would have made
        if isinstance(one, Result):
            plans = one.params["evaluations"] if name == BEST else 1
            quickest = min(quickest, one.runtime / plans)
    return found


def _left(until: float) -> dict[str, object]:
    """The option that gives a planner all the time until then; empty without a limit."""
    return {} if until == math.inf else {"time_limit": max(LEAST_SHARE, until - time.perf_counter())}


def _carry(one: Draft | None, problem: Problem, device: Device, plans: list[Result]) -> None:
    """Keep the fastest of the plans so far and this draft, simulated on the device."""
    if one is not None:
        plans[:] = [min((*plans, one.on(problem, device)), key=attrgetter("makespan"))]


def _draft(problem: Problem, name: str, rung: Device, options: dict[str, object]) -> Draft | None:
    """A planner's plan for a rung. It is cached with the problem, unless it depends on time."""
    make = _drafted if "time_limit" in options else _kept_draft
    return make(problem, name, tuple(fields_of(rung).items()), tuple(options.items()))


def _drafted(
    problem: Problem, name: str, rung: tuple[tuple[str, Any], ...], options: tuple[tuple[str, object], ...]
) -> Draft | None:
    device = Device(**dict(rung))
    if name == "pebbles":
        found = _pebbles(problem, device, {}, dict(options))
        return Draft.of(found[0]) if found else None
    one = outcome(PLANNERS[name].plan, problem, device, dict(options))
    return Draft.of(one) if isinstance(one, Result) else None


_kept_draft = once_per_object(_drafted)


def _pebbles(
    problem: Problem, device: Device, found: dict[str, Result | MemschedError], limit: dict[str, Any]
) -> list[Result]:
    """The outcome of the search of all plans: of small graphs, or where no planner of chains or families has a plan."""
    rare = isinstance(problem, Chain | GraphFamily) and any(isinstance(one, Result) for one in found.values())
    if rare or not suits(problem) or graph_of(problem).persistent:
        return []
    try:
        return [pebbles(problem, device=device, **limit)]
    except MemschedError as error:
        found["pebbles"] = error
        return []


def _none_found(
    problem: Problem, device: Device, found: Mapping[str, Result | MemschedError], seconds: float | None
) -> MemschedError:
    """What to raise if no planner has a plan. Pebbles, a bound or the need of one op proves that there is none."""
    infeasible = {name: one for name, one in found.items() if isinstance(one, InfeasibleError)}
    if not infeasible:
        return next(one for one in found.values() if isinstance(one, MemschedError))
    proof = infeasible.pop("pebbles", None)
    nearest = min(infeasible.values(), key=lambda one: one.min_memory, default=proof)
    assert nearest is not None
    least, unit = least_memory(problem), unit_written(device)
    budget = told_memory(device.memory, unit, problem)
    needs = told_bytes(least, unit, problem, up=True)
    if resident := graph_of(problem).resident:
        needs += f", {format_bytes(resident, unit)} of it resident"
    if device.memory < least:
        said = f"no plan fits '{problem.name}' into {budget}: one op alone needs at least {needs}"
        name = next((name for name, one in infeasible.items() if one is nearest), None)
        if name is not None and nearest.min_memory != least:
            said += f", and {name}, which comes nearest, {told_bytes(nearest.min_memory, unit, problem, up=True)}"
        if isinstance(problem, Chain) and (host := device.host_memory) is not None:
            said += f", and more where what must leave exceeds host_memory = {exact_bytes(host)}"
        return InfeasibleError(said, nearest.min_memory)
    if proof is not None and not isinstance(problem, GraphFamily):  # the last part of which is how much is enough
        name = next((name for name, one in infeasible.items() if one is nearest), "the plain run")
        most = told_bytes(nearest.min_memory, unit, problem, up=True)
        return InfeasibleError(
            f"{str(proof).rpartition('; ')[0]}; {name}, which comes nearest, needs at least {most}", nearest.min_memory
        )
    said = f"that there is none is proven only below {needs}, which one op alone needs"
    if not isinstance(problem, GraphFamily) and math.isinf(recompute_bound(graph_of(problem), device)):
        said = "that there is none is proven by the lower bound"
    said += "; the one that comes nearest: " + str(nearest).replace(f" for '{problem.name}' in {budget}", "")
    if seconds and (late := [name for name, one in found.items() if isinstance(one, LimitError)]):
        said += f"; {', '.join(late)} had too little time: give a longer time_limit"
    return InfeasibleError(f"no planner found a plan for '{problem.name}' in {budget}; {said}", nearest.min_memory)


def _least_makespan(plans: list[Result]) -> float:
    return min((plan.makespan for plan in plans), default=math.inf)


def search_limits(problem: Problem) -> dict[str, object]:
    """Limits of the searches in moves, so that a rung's plan depends neither on the machine nor on time_limit."""
    if not isinstance(problem, Chain):
        return {}
    each = FEW_PER_STAGE if problem.n <= FEWEST else MOVES_PER_STAGE
    return {"moves": max(1, min(MOST_MOVES, MOVES // problem.n, each * problem.n)), "walks": WALKS}


def _auto(name: str, options: dict[str, object], *, timed: bool = True) -> dict[str, object]:
    """Options of one planner, no fewer moves than by default; a time limit, if `timed`, replaces the limit in moves."""
    own, moves = {**AUTO.get(name, {}), **options}, options_of(PLANNERS[name].plan).get("moves")
    if not timed:
        own.pop("time_limit", None)
    if own.get("time_limit") is not None:
        own.pop("moves", None)
        own.pop("walks", None)
    elif "moves" in own and moves is not None and moves.default is not None:
        own["moves"] = max(own["moves"], moves.default)
    return own


def told(say: Say, name: str, found: Mapping[Any, Result | MemschedError]) -> dict[str, object]:
    """Say that a planner begins after these; the option with which it says how far it is."""
    if say is None:
        return {}
    plans, before = [one for one in found.values() if isinstance(one, Result)], ""
    if plans:  # this first, for a narrow terminal
        best = min(plans, key=attrgetter("makespan"))
        bound, gap = format_seconds(best.lower_bound), format_percent(best.gap)
        before = f"best {best.planner} {format_seconds(best.makespan)}, bound {bound}, gap {gap}; "
    say(before + name)

    def further(share: float) -> None:
        try:
            say(f"{before}{name}, {share:.0%}" if share else before + name)  # 0: a search that cannot know
        except MemschedError as error:  # of the caller, not of the planner
            raise _SaidError(error) from error

    return {"progress": further}


class _SaidError(Exception):
    """What the caller's `progress` raised while a planner ran."""


def outcome(
    run: Callable[..., Result], problem: Problem, device: Device, options: dict[str, object]
) -> Result | MemschedError:
    """The result of what `plan_of` gave, or the error that it raised."""
    try:
        return run(problem, device=device, **takes(run, options))
    except MemschedError as error:
        return error
    except _SaidError as raised:
        raise raised.args[0] from None


def _bounded(best: Result, began: float) -> Result:
    """The result with a bound on all plans of the same rounds, not only on its planner's, and the seconds since."""
    bound = certified(bound_of(best.problem, best.schedule, best.device, "all"), best.makespan)
    return dataclasses.replace(best, lower_bound=bound, bound_on="all", runtime=time.perf_counter() - began)

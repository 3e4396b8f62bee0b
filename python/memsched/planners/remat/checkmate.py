"""Checkmate (Jain et al., 2020): what is kept and what runs again, by an integer program."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from memsched import _core
from memsched._core import Device, Graph, Schedule
from memsched.errors import LimitError, MemschedError
from memsched.planners.call import Call, begin
from memsched.planners.entry import Planner
from memsched.problems.problem import Problem, graph_of, least_of
from memsched.result import Result
from memsched.support import quantities
from memsched.support.memo import once_per_object
from memsched.support.types import Quantity

if TYPE_CHECKING:  # the integer programs take a fifth of the time of `import memsched`
    from memsched.arena.ilp.turns import Runs, Turns

_SECONDS = 10.0
_ROUNDING = 1e-7  # relative, within which two times are the same to the integer program


def least_memory(problem: Problem) -> int:
    """The least M for which it has a plan, as far as ten seconds and HiGHS tell."""
    return _least(graph_of(problem))[0]


@once_per_object
def _least(graph: Graph, seconds: float = _SECONDS) -> tuple[int, bool]:
    """An M that is enough, bytes, and whether no less is."""
    from memsched.arena.ilp.recompute import MOST_VARIABLES, least_recompute_ilp, less_recompute_ilp
    from memsched.arena.ilp.turns import turns_of

    turns, most = turns_of(graph, timed=False), _listed_peak(graph)
    if turns.variables > MOST_VARIABLES or most <= max(turns.start, turns.need):
        return most, most <= max(turns.start, turns.need)
    until = time.monotonic() + seconds
    found = least_recompute_ilp(turns, most, until=until)
    least, bound = most, found.bound
    if found.runs is not None:
        least = min(least, turns.peak(found.runs))
    while bound < least and (found := less_recompute_ilp(turns, least, until=until)).runs is not None:
        least = turns.peak(found.runs)
    bound = max(bound, found.bound)
    return least, bound >= least


def _listed_peak(graph: Graph) -> int:
    """Bytes of the plan that runs each op once, in the least workspaces."""
    return _core.order_peak(graph, [0] * _core.tensor_count(graph), list(range(_core.op_count(graph))))


@Planner(
    "recomputes, offloads nothing: the best in turns, by an integer program",
    needs=least_memory,
    needs_alone=least_memory,
    problems=("graph",),
    recomputes=True,
    uses_link=False,
    by_name="exact, for small graphs, needs the extra ilp",
)
def checkmate(
    problem: Problem,
    M: Quantity | None = None,
    beta: Quantity | None = None,
    *,
    device: Device | None = None,
    time_limit: Quantity = _SECONDS,
) -> Result:
    """Run ops again in place of keeping what they write, so that the time is least; nothing moves.

    Checkmate's class of plans: op t of the graph runs for the first time at the end of turn t; before it, in the same
    turn, any ops below t may run again, each once, in the order of the graph. An integer program over HiGHS chooses
    them, and the algorithm of each run. It is exact where the time suffices, which it does on small graphs.

    Parameters
    ----------
    problem : Graph, Chain or GraphFamily
        Of a family the graph at full batch. Weights stay; inputs are freed after their last use.
    beta : float
        Taken for the sake of other planners; nothing uses the link.
    time_limit : float or str
        Seconds. When they are over, the best plan so far.

    Returns
    -------
    Result
        params has class_bound, the seconds that no plan of the class takes less than, and class_optimal, whether this
        is its best plan, up to one part in 10^7. Other plans may be faster, such as those in another order; `optimal`
        says that none is.

    Raises
    ------
    InfeasibleError
        No plan of the class fits.
    LimitError
        The graph is too large for the program, or the time was over before there was a plan.
    MemschedError
        highspy is not installed.

    References
    ----------
    Jain et al., "Checkmate: breaking the memory wall with optimal tensor rematerialization", MLSys 2020, section 4.

    Examples
    --------
    >>> import memsched as ms
    >>> chain = ms.Chain([1, 1, 1], [1, 1, 1], [4, 4, 4, 4], [4, 4, 4, 4])
    >>> result = ms.checkmate(chain, M=20)
    >>> result.recomputed, result.params["class_optimal"]
    (('F1',), True)
    """
    from memsched.arena.ilp.recompute import MOST_VARIABLES, recompute_ilp
    from memsched.arena.ilp.turns import fewest_variables, turns_of

    call = begin(checkmate, problem, M, beta, device)
    limit = quantities.seconds("time_limit", time_limit)
    graph, device = call.graph, call.device
    named = {"name": "checkmate", "time_limit": limit}
    until, memory = time.monotonic() + limit, device.memory
    results: list[Result] = []
    if _listed_peak(graph) <= memory:  # each op once, in the listed order, in its fastest algorithm that fits
        flags, ops = [0] * _core.tensor_count(graph), list(range(_core.op_count(graph)))
        results.append(call.result({}, _core.order_schedule(graph, ops, flags, memory, memory, named)))
    bound = _core.compute_time(graph)  # each op once, the fastest way
    fastest = any(one.makespan <= bound * (1 + _ROUNDING) for one in results)
    turns, variables, time_up, fewest = None, 0, False, _core.op_count(graph)  # an op has one at the least
    if not fastest and fewest <= MOST_VARIABLES and (fewest := fewest_variables(graph.ops)) <= MOST_VARIABLES:
        turns = turns_of(graph, timed=True)
    if turns is not None and turns.variables <= MOST_VARIABLES:
        found = recompute_ilp(turns, memory, until=until)
        bound, variables, time_up = found.bound, found.variables, found.time_up
        if found.runs is not None and turns.peak(found.runs) <= memory:
            lean = turns.lean(found.runs, memory, until)
            results.append(call.result({}, _schedule(graph, turns, lean, memory, named)))
    if not results:
        raise _too_large(call, fewest) if turns is None else _no_plan(call, turns, bound, time_up, until)
    best = min(results, key=lambda result: result.makespan)
    bound = min(bound, best.makespan)
    params = {
        "time_limit": limit,
        "class_bound": bound,
        "class_optimal": best.makespan <= bound * (1 + _ROUNDING),
        "variables": variables,
    }
    return replace(best, params=params, runtime=time.perf_counter() - call.started)


def _no_plan(call: Call, turns: Turns, bound: float, time_up: bool, until: float) -> MemschedError:
    """Why there is none: it does not fit, the graph is too large, or the time was over."""
    from memsched.arena.ilp.recompute import MOST_VARIABLES

    graph, memory, enough = call.graph, call.device.memory, _listed_peak(call.graph)
    if bound == math.inf or max(turns.start, turns.need) > memory:
        needed, proven = _least(graph, max(0.0, until - time.monotonic()))
        return call.no_plan(needed, "no runs in turns fit", enough=not proven)
    if turns.variables > MOST_VARIABLES:
        return _too_large(call, turns.variables)
    once, where = f"give at least {call.told(enough)}, where each op runs once", f"'{graph.name}' in {call.budget}"
    if not time_up:
        return LimitError(
            f"checkmate found no plan for {where}: its sizes or times differ by more than HiGHS can tell apart; {once}"
        )
    return LimitError(f"checkmate found no plan for {where} within the time_limit; give more, or {once}")


def _too_large(call: Call, variables: int) -> MemschedError:
    from memsched.arena.ilp.recompute import MOST_VARIABLES

    graph, enough = call.graph, _listed_peak(call.graph)
    if call.device.memory < least_of(graph):
        return call.no_plan(enough, "some op does not fit", enough=True)
    return LimitError(
        f"checkmate's program for the {_core.op_count(graph)} ops of '{graph.name}' has at least {variables} "
        f"variables, and {MOST_VARIABLES} are the most; give at least {call.told(enough)}, where each op runs once, "
        "or take pooch"
    )


def _schedule(graph: Graph, turns: Turns, runs: Runs, memory: int, named: dict[str, Any]) -> Schedule:
    """The runs, and every tensor freed when it has been read last before it is written again."""
    ops = graph.ops
    weights = {tensor["name"] for tensor in graph.tensors if tensor["role"] == "weight"}
    inputs = [tensor["name"] for tensor in graph.tensors if tensor["role"] == "input"]
    steps: list[dict[str, Any]] = []  # from the last to the first
    wanted: set[str] = set()
    for op, way in reversed(runs):
        writes = [name for name in ops[op]["writes"] if not way.skip or name not in ops[op]["tape"]]
        touched = dict.fromkeys([*ops[op]["reads"], *writes])
        steps += [{"free": name} for name in touched if name not in wanted and name not in weights]
        steps.append({"run": ops[op]["name"], "alg": way.alg, **({"skip": ops[op]["tape"]} if way.skip else {})})
        wanted = (wanted - set(writes)) | set(ops[op]["reads"])
    steps += [{"free": name} for name in inputs if name not in wanted]
    return Schedule(steps[::-1], budget=memory, graph=graph.name, planner=named, rounds=[(graph.batch, 1)])

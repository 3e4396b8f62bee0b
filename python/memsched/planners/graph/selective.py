"""Selective offloading and recomputation: keep, swap or recompute every tensor between any two of its uses."""

from __future__ import annotations

import contextlib
import math
import time

import numpy as np

from memsched import _core
from memsched._core import Device, Graph
from memsched.errors import InfeasibleError, LimitError
from memsched.planners.call import LEAST_TIME, Call, begin, seconds_left
from memsched.planners.entry import Planner
from memsched.problems.bounds import recompute_bound
from memsched.problems.problem import ChunkLike, Problem, graph_of, least_of, peak_of, simulate
from memsched.result import Result
from memsched.support import checks, quantities
from memsched.support.types import Progress, Quantity

MOVES = 1000
STRIDE = 100  # between the seeds of two walks, each of which uses some that follow
DISTANT = 0.02  # from the bound: another walk may find more
STEADY = 1.5e-5  # seconds an op, of simulating a list that is repeated
QUICK_OPS = 20_000  # of a graph that is planned in the least time; a larger one has more, so that it has a plan


@Planner(
    "every tensor by itself: keep, swap or recompute between any two uses",
    needs=lambda problem: least_of(graph_of(problem)),
    problems=("chain", "graph"),
    recomputes=True,
    reorders=True,
    repeats=True,
    seconds_an_op=(1.6e-5, 2.5e-5),
)
def selective(
    problem: Problem,
    M: Quantity | None = None,
    beta: Quantity | None = None,
    *,
    device: Device | None = None,
    chunk: ChunkLike = None,
    moves: int = MOVES,
    seed: int = 0,
    walks: int = 1,
    reorder: bool = True,
    time_limit: Quantity | None = None,
    progress: Progress = None,
) -> Result:
    """Choose for each tensor, between any two of its uses, whether it stays, travels or its writer runs again.

    Whatever memory is short of, goes: first what is wanted late and is cheap to run again or to move, for its bytes.
    The minimum cuts that prove the lower bound tell what to free before, and several orders of the ops are tried. The
    best of several hundred such plans is improved by late acceptance hill climbing on the simulated makespan, which
    changes prices and decisions, and, while it is more than 1 % above the bound, by annealing its list of runs.
    Of a whole step, parameters and states of the optimiser may be on the host between steps. Updates that have a
    `host_time` may run there; then the step is planned without the host, too, in as many moves or half of the time,
    and the better plan counts. Anytime; at 1,000 ops a plan takes 0.5 to 2 ms, more where memory is scarce.

    Parameters
    ----------
    problem : Chain, Graph or GraphFamily
        A chain is planned as its graph; for a family, its graph at full batch.
    moves : int
        Changes that the search tries; with a time_limit, as many as it allows, and none if that is 0.
    walks : int
        Searches, each with so many moves and another seed, while the plan is more than 2 % above the bound; the best
        plan counts. Before several with more than the default moves, one has the default moves. So several with no
        fewer than these are never worse than the default; with fewer they may be. A time_limit allows one.
    reorder : bool
        Ops may run in another order than the listed one, where their tensors allow it.
    time_limit : float or str, optional
        Seconds; when they are over, the best plan so far. The default is no limit, and then the plan depends on the
        input alone.

    Returns
    -------
    Result
        params["evaluations"] counts the plans that were built.

    Raises
    ------
    InfeasibleError
        Some op needs more than M bytes; or, without a link or with a small host, no plan was found, or the bound proves
        that none exists, as the message says: `.min_memory` is the plain peak, but less may do.
    LimitError
        The time is over before there is a plan.

    References
    ----------
    docs/algorithms.md, "Every tensor by itself".

    Examples
    --------
    >>> import memsched as ms
    >>> graph = ms.profiles.load_graph("resnet18-224-b32")
    >>> half = (ms.min_memory(graph) + ms.peak_memory(graph)) // 2
    >>> result = ms.selective(graph, half, 0, moves=100)  # no link
    >>> result.makespan < 1.05 * result.lower_bound
    True
    """
    checks.progress(progress)
    call = begin(selective, problem, M, beta, device, chunk)
    moves = checks.count("moves", moves, 0, 2**62)
    seed = checks.count("seed", seed, 0, 2**63 - 1)
    walks = checks.count("walks", walks, 1, 2**31)
    checks.flag("reorder", reorder)
    time_limit = quantities.time_limit(time_limit)
    params = {
        "chunk": call.chunk,
        "moves": moves,
        "seed": seed,
        "walks": walks,
        "reorder": reorder,
        "time_limit": time_limit,
    }
    told = {"name": "selective", **params}
    if call.device.memory < (least := least_of(call.graph)):
        linked = min(call.device.d2h, call.device.h2d) > 0 and call.device.host_memory is None
        raise call.no_plan(least if linked else peak_of(call.graph), "some op does not fit", enough=not linked)
    fits = not call.graph.persistent and call.device.memory >= peak_of(call.graph)
    if fits and all(len(op["choices"]) == 1 for op in call.graph.ops):
        none = np.zeros(_core.tensor_count(call.graph), bool)
        kept = _core.offload_set_schedule(call.graph, call.device.memory, none, told, call.chunk)
        return call.result({**params, "evaluations": 1}, kept)
    repeated = STEADY * _core.op_count(call.graph) if call.graph.persistent else 0.0
    left = seconds_left(call.until(time_limit, repeated))
    bound = recompute_bound(call.graph, call.device)
    if math.isinf(bound):
        raise _none_found(call, "no plan exists: what must be held does not fit")
    schedule, least_time, evaluations = None, math.inf, 0
    tries = [(moves, (seed + walk * STRIDE) % 2**63) for walk in range(walks)]
    if time_limit is not None:
        tries = [(0 if time_limit == 0 else 2**62, seed)]
    elif walks > 1 and moves > MOVES:
        tries.insert(0, (MOVES, seed))
    if left is not None:
        left = max(left, LEAST_TIME * max(1.0, _core.op_count(call.graph) / QUICK_OPS))
    alone = _core.without_host(call.graph)  # what helps there is never slower than what does without
    began = time.monotonic()
    for graph in (call.graph,) if alone is None else (alone, call.graph):
        share = left
        if left is not None and alone is not None:
            share = left / 2 if graph is alone else max(left / 2, left - (time.monotonic() - began))
        for some, sown in tries:
            found, built = _core.selective(graph, call.device, some, sown, reorder, share, told, call.chunk, progress)
            evaluations += built
            if found is None:
                break
            if len(tries) == 1 and alone is None:
                schedule = found
                break
            makespan = simulate(call.graph, found, call.device).makespan
            if makespan < least_time:
                schedule, least_time = found, makespan
            if least_time <= (1 + DISTANT) * bound and some == tries[-1][0]:
                break
    if schedule is None:
        raise _none_found(call, "no mixture that was tried fits")
    return call.result({**params, "evaluations": evaluations}, schedule)


def _none_found(call: Call, reason: str) -> InfeasibleError:
    if min(call.device.d2h, call.device.h2d) == 0:
        reason += ", and without a link (no beta) nothing can travel"
    return call.no_plan(peak_of(call.graph), reason, enough=True)


def is_planned(graph: Graph, device: Device, *, reorder: bool) -> bool:
    """Whether `selective` has a plan, which is the first that it finds, and none where none exists."""
    if device.memory < least_of(graph) or math.isinf(recompute_bound(graph, device)):
        return False
    told = {"name": "selective"}
    for one in filter(None, (graph, _core.without_host(graph))):
        for time_limit in (0.0, None):
            with contextlib.suppress(LimitError):
                if _core.selective(one, device, 0, 0, reorder, time_limit, told, None, None)[0] is not None:
                    return True
    return False

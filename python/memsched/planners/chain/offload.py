"""OFFLOAD: anytime search for the best offload set, on the simulated makespan itself."""

from __future__ import annotations

import time

import numpy as np

from memsched import _core
from memsched._core import Chain, Device
from memsched.planners.call import LEAST_TIME, seconds_left
from memsched.planners.chain.dynprog import DYNPROG
from memsched.planners.chain.greedy import GREEDY
from memsched.planners.entry import Planner
from memsched.planners.sets import SIMULATED, ChainCall, begin_chain, least_of_fluid_model
from memsched.problems.bounds import graph_bound, recompute_bound
from memsched.problems.fluid import fluid_chain, fluid_solve, prefix_set
from memsched.problems.problem import ChunkLike, least_memory
from memsched.result import Result
from memsched.support import checks, quantities
from memsched.support.types import Flags, Progress, Quantity

WINDOWS = 500
FLUID_STATES = 200_000  # limit of the search for a fluid optimum to start from


def _fitted_prefix(call: ChainCall) -> Flags:
    """The prefix in order of release, with its last tensor replaced by the smallest other one that suffices."""
    flags = call.plans.release_prefix(call.device)
    movable = np.array(_core.movable_tensors(call.graph))
    sizes = _core.tensor_bytes(call.graph)
    prefix = movable[flags[movable] == 1]
    others = movable[flags[movable] == 0]
    missing = call.excess - int(sizes[prefix[:-1]].sum())
    fitting = others[sizes[others] >= missing]
    if fitting.size:
        best = fitting[np.argmin(sizes[fitting])]
        if sizes[best] < sizes[prefix[-1]]:
            flags[prefix[-1]], flags[best] = 0, 1
    return flags


def _windows(call: ChainCall) -> list[Flags]:
    """Runs of tensors in order of release that just free enough, for a host too small for the other starts."""
    movable = np.array(_core.movable_tensors(call.graph))
    ends = np.concatenate([[0], np.cumsum(_core.tensor_bytes(call.graph)[movable])])
    windows = []
    count = max(1, min(WINDOWS, SIMULATED // _core.op_count(call.graph)))
    for first in range(0, len(movable), max(1, len(movable) // count)):
        last = int(np.searchsorted(ends, ends[first] + call.excess))
        if last < len(ends):
            flags = np.zeros(len(call.stage), np.uint8)
            flags[movable[first:last]] = 1
            windows.append(flags)
    return windows


def _starts(call: ChainCall, progress: Progress, until: float) -> list[Flags]:
    """Starting sets: GREEDY's, prefixes in order of release, DYNPROG's, the fluid optimum, and everything.

    If they are ready when time.perf_counter() reaches `until`, they do not depend on the time limit, so more time never
    gives a worse plan.
    """
    everything = np.zeros(len(call.stage), np.uint8)
    everything[_core.movable_tensors(call.graph)] = 1
    all_stages, instance = call.tensors(np.ones(call.chain.n, np.uint8)), fluid_chain(call.chain, call.device)
    starts = [
        call.plans.choose(GREEDY, call.device)[0],
        call.tensors(prefix_set(instance, call.excess)),  # which DYNPROG may take, and not GREEDY of pieces
        call.plans.release_prefix(call.device),
        _fitted_prefix(call),
        all_stages,
        everything,
    ]
    if call.device.memory >= least_of_fluid_model(call.chain):
        starts.append(call.plans.choose(DYNPROG, call.device, seconds_left(until), progress)[0])
        exact = fluid_solve(
            instance,
            gap=1e-3,
            max_states=FLUID_STATES,
            time_limit=seconds_left(until),
            progress=progress,
        )
        starts.append(call.tensors(exact.offloaded))
    return starts + (_windows(call) if call.device.host_memory is not None else [])


@Planner("anytime search on the simulated makespan", needs=least_memory, seconds_an_op=(2e-5, 2e-5))
def offload(
    chain: Chain,
    M: Quantity | None = None,
    beta: Quantity | None = None,
    *,
    device: Device | None = None,
    chunk: ChunkLike = None,
    time_limit: Quantity = 1.0,
    moves: int | None = None,
    gap: float = 0.0,
    seed: int = 0,
    progress: Progress = None,
) -> Result:
    """Search for the offload set with the least simulated makespan. The planner to use without recomputation.

    Starts from GREEDY, DYNPROG and the fluid optimum, improves them by local search on the simulator, and stops when
    time is up or the lower bound is reached. Never worse than greedy and dynprog (same chunk, default options).

    Parameters
    ----------
    chunk : None, int or str
        Transfer whole tensors, pieces of at most this many bytes, or single storages. Pieces of 16 MiB come close to
        the bound almost everywhere.
    time_limit : float or str
        Seconds in total, except for the starting sets, which are always made and take as long as greedy and dynprog.
        More time never gives a worse plan; how far the search gets depends on the machine.
    moves : int, optional
        Most moves of the search, rounded up to a multiple of 32, instead of time_limit; then the plan does not depend
        on the machine.
    gap : float
        Stop at a proven (makespan - bound) / bound of this size.

    Returns
    -------
    Result
        `gap` is certified by `lower_bound`, the larger of the bounds on plans that run each op once and on all plans;
        `bound_on` says which. params["evaluations"] counts the starting sets and the moves, these in
        parts of 32, each in full even if it ends early.

    Examples
    --------
    >>> import memsched as ms
    >>> chain = ms.Chain([1, 1, 1], [1, 1, 1], [4, 4, 4, 4], [0, 4, 4, 4])
    >>> result = ms.offload(chain, M=20, beta=4)
    >>> result.makespan, result.optimal
    (6.0, True)
    """
    time_limit = quantities.seconds("time_limit", time_limit)
    if moves is not None:
        moves = checks.count("moves", moves, 0, 2**63 - 1)
    gap = checks.non_negative("gap", gap, "units")
    seed = checks.count("seed", seed, 0, 2**63 - 1)
    call = begin_chain(offload, chain, M, beta, device, chunk)
    until = call.until(None if moves is not None else time_limit)
    bound = max(graph_bound(call.graph, call.device), recompute_bound(call.graph, call.device))
    until = max((call.started + until) / 2, call.started + LEAST_TIME)  # the other half for the search
    starts = [np.zeros(len(call.stage), np.uint8)] if call.excess <= 0 else _starts(call, progress, until)
    if not np.isfinite(call.makespans(np.array(starts))).any():
        raise call.host_error()
    left = max(0.0, time_limit - (time.perf_counter() - call.started)) if moves is None else None
    planner = {"name": "offload", "seed": seed}
    graph, device, rows = call.graph, call.device, np.array(starts)
    schedule, evaluations = _core.offload_search(
        graph, device, device.memory, rows, bound, gap, seed, moves, left, planner, call.chunk, progress
    )
    limit = {"time_limit": time_limit} if moves is None else {"moves": moves}
    params = {"chunk": call.chunk, **limit, "seed": seed, "evaluations": evaluations}
    return call.result(params, schedule, both=True)

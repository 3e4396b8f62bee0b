"""TFLMS (TensorFlow large model support) as the Euro-Par paper compares it: the first n tensors, blindly."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from memsched import _core
from memsched._core import Chain, Device, Graph
from memsched.errors import LimitError
from memsched.planners.call import Call, begin, by_bisection, far_apart, seconds_left, sooner
from memsched.planners.classes import WORKSPACE_LIMIT, ClassCall, need_of_keeping_all, of_classes
from memsched.planners.entry import Planner
from memsched.planners.sets import begin_chain
from memsched.problems.problem import ChunkLike, Problem, altered, graph_of, profile_link
from memsched.result import Result
from memsched.support import quantities
from memsched.support.types import Flags, Quantity, Size

LOOKAHEADS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # tried first
MOST_LAYERS = 150  # of which every lookahead is tried; of more, powers of two


def _prefix(n: int, counts: npt.NDArray[np.int64]) -> Flags:
    """One row per count r: x_0 .. x_{r-1} are offloaded."""
    return (np.arange(n) < counts[:, None]).astype(np.uint8)


def min_memory(chain: Chain, device: Device, chunk: ChunkLike = None, until: float = math.inf) -> int:
    """The least M at which some (n, lookahead) runs, by bisection: with more memory nothing waits longer.

    When time.perf_counter() reaches `until`, the least M known so far. Taken in random order, few n improve on the
    least M found by others, and only those need a bisection.
    """
    peak = max(1, _core.graph_peak_memory(graph_of(chain)))
    call = begin_chain(tflms, chain, peak, None, device, chunk)
    least = call.device.memory

    def runs(counts: npt.NDArray[np.int64], memory: int) -> npt.NDArray[np.bool_]:
        at = replace(call, device=altered(device, memory=memory))
        return np.isfinite(at.makespans(at.tensors(_prefix(chain.n, counts)), ahead=1, stall=False))

    def runs_one(count: np.int64, memory: int) -> bool:
        return bool(runs(np.array([count]), memory)[0])

    for counts in np.array_split(np.random.default_rng(0).permutation(chain.n + 1), 1 + chain.n // 64):
        if time.perf_counter() >= sooner(until):
            break
        for one in counts[runs(counts, least - 1)] if least > 1 else ():
            if least > 1 and runs_one(one, least - 1):
                least = by_bisection(partial(runs_one, one), 0, least - 1, until)
    return least


def _needs(problem: Problem) -> int:
    """The least M on the profile's link, or on a free one if there is none."""
    if not isinstance(problem, Chain):
        return graph_min_memory(graph_of(problem), WORKSPACE_LIMIT)
    link = profile_link(problem)
    return min_memory(problem, Device(1, math.inf if link is None else link))


@Planner(
    "the first n, fixed lookahead, no waiting",
    needs=_needs,
    needs_on=min_memory,
    problems=("chain", "graph"),
    seconds_an_op=(6e-6, 6e-6),
)
def tflms(
    problem: Problem,
    M: Quantity | None = None,
    beta: Quantity | None = None,
    *,
    device: Device | None = None,
    chunk: ChunkLike = None,
    workspace_limit: Size = WORKSPACE_LIMIT,
    time_limit: Quantity | None = None,
) -> Result:
    """Offload the first n activations and prefetch a fixed number of stages ahead; the best of all such settings wins.

    It uses no profile. On a chain a forward never waits for memory: a setting that would make one wait fails, and so
    does one whose prefetches do not fit. On a graph the first n feature maps are offloaded, and prefetched a number of
    layers ahead. Of up to 150 stages or layers every lookahead is tried, unless one takes no longer than computation.

    Returns
    -------
    Result
        params["tensors"] and params["lookahead"] (stages, or layers) are the best setting.

    Raises
    ------
    InfeasibleError
        No setting runs; at `.min_memory` one does.
    LimitError
        Time ran out before a setting that runs was found.

    References
    ----------
    Le et al., "TFLMS", 2018; Beaumont, Eyraud-Dubois, Shilova, Euro-Par 2020, section 6.1.

    Examples
    --------
    >>> import memsched as ms
    >>> chain = ms.Chain([1, 1, 1], [1, 1, 1], [4, 4, 4, 4], [0, 4, 4, 4])
    >>> ms.tflms(chain, M=20, beta=8).params["tensors"]
    1
    """
    if not isinstance(problem, Chain):
        started = begin(tflms, problem, M, beta, device, chunk)
        found = of_classes(started, workspace_limit, need=lambda *_: 0)
        return _of_graph(found, quantities.time_limit(time_limit) or None)
    call = begin_chain(tflms, problem, M, beta, device, chunk, least=False)
    limit = quantities.time_limit(time_limit) or None

    def tried(aheads: Sequence[int], counts: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Makespans, one row a lookahead; infinite if a forward waits for memory."""
        return call.makespans_of_many(
            lambda numbers: _prefix(problem.n, counts[numbers]),
            len(counts),
            time_limit=limit,
            aheads=aheads,
            stall=False,
        )

    makespans = tried(LOOKAHEADS, np.arange(problem.n + 1))
    if not np.isfinite(makespans).any():
        least = min_memory(problem, call.device, call.chunk, call.until(limit))
        raise call.no_plan(least, "every setting makes a forward wait for memory, which tflms cannot do")
    count, ahead = _best(call, makespans, problem.n, tried, call.until(limit))
    flags = call.tensors(_prefix(problem.n, np.array([count]))[0])
    setting = {"tensors": count, "lookahead": ahead}
    schedule = call.schedule(flags, {"name": "tflms", **setting}, ahead)
    return call.result({"chunk": call.chunk, **setting}, schedule)


def _best(
    call: Call,
    makespans: npt.NDArray[np.float64],
    layers: int,
    tried: Callable[[Sequence[int], npt.NDArray[np.int64]], npt.NDArray[np.float64]],
    until: float,
) -> tuple[int, int]:
    """The best number of tensors and lookahead, from the makespans of `LOOKAHEADS` and of what else is tried."""
    row, count = divmod(int(np.argmin(makespans)), makespans.shape[1])
    if time.perf_counter() >= until:
        return count, LOOKAHEADS[row]
    best, found = float(makespans[row, count]), (count, LOOKAHEADS[row])
    compute = _core.compute_time(call.graph)
    counts = np.flatnonzero(np.isfinite(makespans).any(axis=0))
    longer = range(1, layers + 1) if layers <= MOST_LAYERS else (64 << k for k in range(32))
    for ahead in (one for one in longer if one not in LOOKAHEADS and one <= layers):
        if best <= compute * (1 + 1e-9) or time.perf_counter() >= until:
            break
        with contextlib.suppress(LimitError):  # of the time
            seconds = tried([ahead], counts)[0]
            if seconds.min() < best * (1 - 1e-12):
                best, found = float(seconds.min()), (int(counts[np.argmin(seconds)]), ahead)
            counts = counts[np.isfinite(seconds)]
        if not len(counts):
            break
    return found


def graph_min_memory(graph: Graph, workspace_limit: int, above: int = 0, until: float = math.inf) -> int:
    """An M above `above` at which some n runs, fetched one layer ahead, while with one byte less none does.

    When time.perf_counter() reaches `until`, the least M known so far.
    """
    counts = far_apart(len(_core.feature_maps(graph)) + 1).tolist()

    def runs(memory: int) -> bool:
        device, seconds = Device(memory, 1.0), seconds_left(sooner(until))
        found = _core.prefix_makespans(graph, device, workspace_limit, counts, [1], any=True, time_limit=seconds)
        if math.isinf(min(found)) and time.perf_counter() >= sooner(until):
            raise LimitError("there was no time to try every number of feature maps")
        return math.isfinite(min(found))

    return by_bisection(runs, above, max(above + 1, need_of_keeping_all(graph, workspace_limit)), until)


def _of_graph(call: ClassCall, time_limit: float | None) -> Result:
    if call.stays:
        return call.result({"tensors": 0, "lookahead": None}, call.everything_stays())
    graph, limit, until = call.graph, call.workspace_limit, call.until(time_limit)
    maps = len(_core.feature_maps(graph))
    counts = np.arange(maps + 1) if time_limit is None else far_apart(maps + 1)

    def tried(aheads: Sequence[int], counts: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        seconds = seconds_left(until)
        found = _core.prefix_makespans(graph, call.device, limit, counts.tolist(), aheads, time_limit=seconds)
        return np.reshape(found, (len(aheads), len(counts)))

    makespans = np.empty((len(LOOKAHEADS), maps + 1))
    makespans[:, counts] = tried(LOOKAHEADS, counts)
    if not np.isfinite(makespans).any():
        if time.perf_counter() >= until:
            raise LimitError(f"time_limit is {time_limit} seconds, and no setting tried so far runs; give more")
        least = graph_min_memory(graph, limit, until=until)
        if least <= call.device.memory:
            least = graph_min_memory(graph, limit, call.device.memory, until)
        raise call.no_plan(least, "with any number of offloaded maps, some op or what is fetched ahead does not fit")
    ops = _core.op_count(graph)
    deepest = len({op["layer"] for op in graph.ops}) if ops <= 20 * MOST_LAYERS else ops  # to list more takes long
    count, layers = _best(call, makespans, deepest, tried, until)
    params = {"tensors": count, "lookahead": layers}
    planner = {"name": "tflms", **params}
    classes = _prefix(maps, np.array([count]))[0]
    schedule = _core.class_schedule(graph, call.device, limit, classes, fetch="layers", layers=layers, planner=planner)
    assert schedule is not None  # it has a makespan
    return call.result(params, schedule)

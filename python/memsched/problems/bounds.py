"""Lower bounds on the makespan, each valid on the simulated graph, and the optimum of the paper's own model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from memsched import _core
from memsched._core import Chain, Device, Graph, Schedule
from memsched.errors import InternalError
from memsched.problems.budget import make_device
from memsched.problems.family import GraphFamily, can_split
from memsched.problems.fluid import fluid_chain, fluid_solve
from memsched.problems.problem import ChunkLike, Problem, graph_of
from memsched.support import checks, quantities
from memsched.support.docstrings import documented
from memsched.support.memo import once_per_object
from memsched.support.types import Quantity
from memsched.support.views import Columns, Shown, Tabular

BOUND_ON = ("all", "once")  # all schedules, or those that run each op once, in graph order
_NAMES = ("best", "compute", "transfer", "fractional", "recompute", "interruptible")
ROUNDING = 1e-9  # relative difference allowed between sums of up to a million times in different orders


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds(Tabular, Shown):
    """Lower bounds in seconds. As a data frame, a row for each.

    Attributes
    ----------
    compute : float
        Sum of the fastest times of all ops. With updates that may run on the host: the least load of the device, the
        host and the link, if any share of each such op runs in either place.
    transfer : float
        Bytes above M at the peak must be offloaded and prefetched (Euro-Par 2020, Proposition 3). With persistent
        tensors: what is not on the device while an op runs comes back in each repetition, and what was updated leaves
        in each; then `fractional` is the larger of `compute` and this.
    fractional : float
        Optimum if any fraction of a tensor may move at any time (Theorem 2), on the graph's tensors, for schedules
        that `bound_on` names. Tapes that no op reads need not be written.
    recompute : float
        What does not fit when an op starts is prefetched or recomputed, each tensor with what that takes (a minimum
        cut), and so is what must come between two ops that run once; holds for schedules that recompute or reorder,
        too. Tensors move whole; for pieces, take the graph of the chain in pieces.
    best : float
        The largest of the first three, which hold for pieces of tensors, too; with `recompute=True` it is `recompute`.
        For whole tensors the larger of `best` and `recompute` holds.
    interruptible : float or None
        Optimum of the interruptible model, among schedules in which no prefetch starts before the last offload has
        ended; if `interruptible_proven` is false, the best lower bound on it. It holds in this class only and is
        never part of `best`. None if no set fits, and where tensors must travel over a link whose directions differ
        in bandwidth: the model has one bandwidth.
    interruptible_proven : bool
    bound_on : str
        The schedules that `transfer` and `fractional` hold for: "once", those that run each op once, in graph order,
        or "all", where tensors are persistent.
    """

    compute: float
    transfer: float
    fractional: float
    recompute: float
    best: float
    interruptible: float | None
    interruptible_proven: bool
    bound_on: str = "once"

    def _columns(self) -> Columns:
        return {"bound": (str, list(_NAMES)), "seconds": (float, [getattr(self, name) for name in _NAMES])}

    def __repr__(self) -> str:
        given = {name: getattr(self, name) for name in _NAMES if getattr(self, name) is not None}
        return f"Bounds({', '.join(f'{name}={seconds:.6g}' for name, seconds in given.items())})"


def graph_bound(graph: Graph, device: Device) -> float:
    """The largest bound on schedules that run each op once in graph order, in seconds."""
    return _core.graph_bounds(graph, device, device.memory)[2]  # the fractional bound contains the others


def recompute_bound(graph: Graph, device: Device) -> float:
    """The largest bound on schedules that may also recompute, in seconds; found once for each graph and device."""
    return _recompute_bound(graph, device.memory, device.d2h, device.h2d, device.duplex, device.host_memory)


@once_per_object
def _recompute_bound(graph: Graph, memory: int, d2h: float, h2d: float, duplex: bool, host_memory: int | None) -> float:
    device = Device(memory, d2h=d2h, h2d=h2d, duplex=duplex, host_memory=host_memory)
    cut: float = _core.cut_bound(graph, device, memory)[0]
    if graph.persistent:
        return cut
    return max(_core.recompute_bound(graph, device, memory), cut, _core.pause_bound(graph, device, memory)[0])


def bound_of(problem: Problem, schedule: Schedule, device: Device, on: str) -> float:
    """The largest lower bound that can be derived, in seconds, on schedules with the same rounds.

    `on` is "once" (schedules that run each op once, in graph order) or "all". A chain is cut as the schedule cuts it.
    """
    bound = recompute_bound if on == "all" else graph_bound
    return over_rounds(problem, schedule, lambda graph: bound(graph, device))


def strongest_bound(problem: Problem, schedule: Schedule, device: Device) -> tuple[float, str]:
    """The larger bound of the two that hold for a schedule that runs each op once, in graph order; and what it is on.

    That on all plans takes tensors whole, or in the pieces that they are in: so it may be above the other one, which
    lets any part of a tensor move.
    """
    return max(((bound_of(problem, schedule, device, on), on) for on in reversed(BOUND_ON)), key=lambda one: one[0])


def covered(problem: Problem, chunk: ChunkLike, on: str) -> str:
    """The plans that a bound from `bound_of` covers, in words."""
    plans = "all plans" if on == "all" else "plans that run each op once, in graph order"
    return plans + alike(problem, chunk, on)


def alike(problem: Problem, chunk: ChunkLike, on: str) -> str:
    """What these plans have in common beside their class, in words that follow it; empty if nothing.

    Plans in other rounds may be faster. So may those that cut the tensors of a chain otherwise, except where the bound
    is on plans that run each op once: that one lets any part of a tensor move.
    """
    if isinstance(problem, GraphFamily):
        return " in the same rounds" if can_split(problem) else ""
    if on == "once" or not isinstance(problem, Chain):
        return ""
    return " with whole tensors" if chunk is None else " in the same pieces"


def ideal_time(problem: Problem, schedule: Schedule) -> float:
    """Seconds of computation alone: each op once with its fastest algorithm, over all rounds."""
    return over_rounds(problem, schedule, _core.compute_time)


def over_rounds(problem: Problem, schedule: Schedule, seconds: Callable[[Graph], float]) -> float:
    """The sum over all rounds of a value of each round's graph."""
    if isinstance(problem, GraphFamily):
        return float(sum(times * seconds(problem.at(batch)) for batch, times in schedule.rounds))
    return seconds(graph_of(problem, schedule.chunk))


def certified(bound: float, makespan: float) -> float:
    """A lower bound in a form that never exceeds the makespan of a plan of its class.

    Both are sums of the same times in different orders. An excess by rounding is cut to the makespan; a larger one
    would be a false proof and raises InternalError.
    """
    if not bound <= makespan * (1 + ROUNDING):
        raise InternalError(
            f"the lower bound {bound!r} is above the makespan {makespan!r} of a plan that it covers; this is a "
            "bug in memsched, please report it with the problem and the device"
        )
    return min(bound, makespan)


@documented
def bounds(
    problem: Problem,
    M: Quantity | None = None,
    beta: Quantity | None = None,
    *,
    device: Device | None = None,
    recompute: bool = False,
    time_limit: Quantity = 10.0,
) -> Bounds:
    """Lower bounds on the makespan of a problem.

    Parameters
    ----------
    problem : Chain or Graph
    recompute : bool
        Whether schedules may recompute; then `best` is `recompute`, which is at least the compute bound.
    time_limit : float or str
        Seconds for the interruptible optimum.

    References
    ----------
    Beaumont, Eyraud-Dubois, Shilova, Euro-Par 2020: Proposition 3, Theorem 2, section 5. docs/algorithms.md proves
    `fractional` and `recompute`.

    Examples
    --------
    >>> import memsched as ms
    >>> chain = ms.Chain([1, 1, 1], [1, 1, 1], [4, 4, 4, 4], [0, 4, 4, 4])
    >>> ms.bounds(chain, M=20, beta=1).transfer
    8.0
    """
    device = make_device(problem, M, beta, device)
    recompute = checks.flag("recompute", recompute)
    time_limit = quantities.seconds("time_limit", time_limit)
    graph = graph_of(problem)
    compute, transfer, fractional = _core.graph_bounds(graph, device, device.memory)
    recomputing = recompute_bound(graph, device)
    interruptible, proven = None, False
    if isinstance(problem, Chain):
        instance = fluid_chain(problem, device)
        if instance.feasible and instance.bounds_plans:
            solution = fluid_solve(instance, time_limit=time_limit)
            interruptible, proven = solution.lower_bound, solution.optimal
    return Bounds(
        compute=compute,
        transfer=transfer,
        fractional=fractional,
        recompute=recomputing,
        best=recomputing if recompute else max(compute, transfer, fractional),
        interruptible=interruptible,
        interruptible_proven=proven,
        bound_on="all" if graph.persistent else "once",
    )

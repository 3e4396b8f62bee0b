"""One call of a planner: what it is to plan, on what, since when; and what it returns or raises."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from memsched._core import Device, Graph, Schedule
from memsched.arena.placement import Placement
from memsched.arena.residency import placement_of
from memsched.errors import InfeasibleError
from memsched.planners.entry import ENTRIES, Planner
from memsched.problems.bounds import bound_of, certified
from memsched.problems.problem import ChunkLike, Problem, graph_of, largest_graph, make_device, peak_of, simulate
from memsched.result import Result

LEAST_TIME = 0.15  # seconds: what is ready so soon is never cut short


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a planner.

    Attributes
    ----------
    entry : Planner
    problem : Chain, Graph or GraphFamily
    graph : Graph
        What is planned on: the chain cut as `chunk` says, the graph, or the family's at full batch.
    device : Device
        Its memory is the budget M.
    started : float
        When the call began, for Result.runtime.
    chunk : None, int or "storage"
    workspace_limit : int, optional
        Of a graph: bytes of workspace within which each op takes its fastest algorithm.
    """

    entry: Planner
    problem: Problem
    graph: Graph
    device: Device
    started: float
    chunk: ChunkLike = None
    workspace_limit: int | None = None

    @property
    def excess(self) -> int:
        """Bytes by which the plain run exceeds M; <= 0 when it fits."""
        return peak_of(self.graph) - self.device.memory

    @property
    def capacity(self) -> int:
        """Bytes for everything but what is resident."""
        return self.device.memory - self.graph.resident

    def result(
        self,
        params: dict[str, Any],
        schedule: Schedule,
        *,
        estimate: float | None = None,
        placement: Placement | None = None,
    ) -> Result:
        """Simulate, bound and wrap, as `measured` does."""
        return measured(
            *(self.entry.name, params, self.problem, schedule, self.device, self.started),
            estimate=estimate,
            recomputes=self.entry.free,
            placement=placement,
        )

    def no_plan(self, needed: int, reason: str, *, enough: bool = False) -> InfeasibleError:
        """What to raise where there is no plan: why, and what it takes, or what is `enough` while less may be."""
        return infeasible(self.entry.name, self.graph.name, self.device, needed, reason, enough=enough)


def begin(
    plan: Callable[..., Result], problem: Problem, M: float | None, beta: float | None, device: Device | None
) -> Call:
    """Check what a call is about.

    Raises
    ------
    InvalidInputError
        A bad problem, M, beta or device.
    """
    started = time.perf_counter()
    graph = graph_of(problem)
    return Call(entry=ENTRIES[plan], problem=problem, graph=graph, device=make_device(M, beta, device), started=started)


def measured(
    planner: str,
    params: dict[str, Any],
    problem: Problem,
    schedule: Schedule,
    device: Device,
    started: float,
    *,
    estimate: float | None = None,
    recomputes: bool,
    placement: Placement | None = None,
) -> Result:
    """Simulate, bound and wrap. A plan that meets the bound is proven optimal.

    `placement` is that of the schedule, where the planner knows it already.

    `recomputes` tells whether the planner's decision space has recomputation: then the bound must hold for it. Of a
    family the bound is on plans that split the batch in the same way.
    """
    timeline = simulate(problem, schedule, device)
    bound_on = "all" if recomputes else "once"
    bound = certified(bound_of(problem, schedule, device, bound_on), timeline.makespan)
    return Result(
        planner=planner,
        params=params,
        problem=problem,
        device=device,
        schedule=schedule,
        timeline=timeline,
        placement=placement or placement_of(schedule, largest_graph(problem, schedule)),
        estimate=estimate,
        lower_bound=bound,
        bound_on=bound_on,
        runtime=time.perf_counter() - started,
    )


def infeasible(
    planner: str, problem: str, device: Device, needed: int, reason: str, *, enough: bool = False
) -> InfeasibleError:
    """What to raise where there is no plan: the reason, and what it takes, or what is `enough` while less may be."""
    needs = f"M >= {needed} is enough, and less may be" if enough else f"it needs M >= {needed}"
    return InfeasibleError(f"{planner} has no plan for '{problem}' in {device.memory} bytes: {reason}; {needs}", needed)


def without_link(device: Device, moved: int, copies: int = 0) -> bool:
    """Whether the device has no link, or one on which so many bytes, in so many copies, never arrive."""
    slowest = min(device.d2h, device.h2d)
    if slowest == 0 or moved > sys.float_info.max * slowest:
        return True
    return copies > 0 and not math.isfinite(1e6 * (copies * device.latency + moved / slowest))


def check_memory(
    planner: str,
    graph: Graph,
    device: Device,
    min_memory: Callable[[], int],
    recomputing: Callable[[], int] | None = None,
    copies: int = 0,
) -> None:
    """Refuse a memory below the planner's minimum, or below the peak when there is no link.

    Raises
    ------
    InfeasibleError
    """
    needed = peak_of(graph)
    no_link = without_link(device, needed, copies)
    if device.memory < needed:
        if not no_link:
            needed = min_memory()
        elif recomputing is not None:
            needed = recomputing()
    if device.memory < needed:
        reason = (
            "without a link (beta is 0, missing or next to nothing) everything must stay"
            if no_link and recomputing is None
            else "some stage does not fit"
        )
        needs = f"it needs M >= {needed}"
        travels = not no_link and needed < peak_of(graph) and (recomputing is None or needed < recomputing())
        if travels and device.host_memory is not None:
            needs += f", and more where what must leave exceeds host_memory = {device.host_memory}"
        raise InfeasibleError(
            f"{planner} has no plan for '{graph.name}' in {device.memory} bytes: {reason}; {needs}", needed
        )


def over_at(started: float, time_limit: float | None) -> float:
    """The moment of time.perf_counter() at which a call with such a limit is over; without one never."""
    return math.inf if time_limit is None else started + max(time_limit, LEAST_TIME)


def seconds_left(until: float) -> float | None:
    """Seconds from now to a moment, for the core; None where there is no limit."""
    return None if until == math.inf else max(0.0, until - time.perf_counter())


def far_apart(count: int) -> npt.NDArray[np.int64]:
    """The numbers below `count`, such that the first few of them lie far apart."""
    numbers, strides = np.arange(count), (2**power for power in range(count.bit_length(), 0, -1))
    return np.concatenate([numbers[stride // 2 :: stride] for stride in strides] + [numbers[:1]])

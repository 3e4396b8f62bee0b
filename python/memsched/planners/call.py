"""One call of a planner: its problem, device and start time, and how its result or error is made; plans for others."""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from memsched._core import Device, Graph, Schedule, op_count
from memsched.arena.placement import Placement
from memsched.arena.residency import placement_of
from memsched.errors import InfeasibleError, InvalidInputError, LimitError
from memsched.planners.entry import ENTRIES, Planner
from memsched.problems.bounds import bound_of, certified, recompute_bound, strongest_bound
from memsched.problems.budget import make_device, told_bytes, told_memory
from memsched.problems.family import GraphFamily
from memsched.problems.problem import (
    ChunkLike,
    Problem,
    graph_of,
    largest_graph,
    least_memory,
    peak_of,
    profile_link,
    simulate,
)
from memsched.result import Result
from memsched.support import quantities
from memsched.support.documents import fields
from memsched.support.formats import exact_bytes, format_bandwidth, unit_written
from memsched.support.types import Quantity

LEAST_TIME = 0.15  # seconds; work that takes less is never cut short


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a planner."""

    entry: Planner
    problem: Problem
    graph: Graph  # to plan on: the chain's, cut as `chunk` says; the graph itself; or the family's at full batch
    device: Device  # its memory is the budget M
    started: float  # when the call began, for Result.runtime
    chunk: ChunkLike = None
    workspace_limit: int | None = None  # bytes, for graphs: each op uses the fastest algorithm within it

    @property
    def excess(self) -> int:
        """Bytes by which the plain run exceeds M; <= 0 when it fits."""
        return peak_of(self.graph) - self.device.memory

    @property
    def capacity(self) -> int:
        """Bytes that are left beside the resident ones."""
        return self.device.memory - self.graph.resident

    @property
    def facts(self) -> dict[str, Any]:
        """Its fields by name, to make a call of another class."""
        return {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}

    def result(
        self,
        params: dict[str, Any],
        schedule: Schedule,
        *,
        estimate: float | None = None,
        placement: Placement | None = None,
        both: bool = False,
    ) -> Result:
        """Simulate a schedule and make a Result of it, as `measured` does."""
        return measured(
            *(self.entry.name, params, self.problem, schedule, self.device, self.started),
            estimate=estimate,
            recomputes=self.entry.free,
            placement=placement,
            both=both,
        )

    def check_time(self, time_limit: float) -> None:
        """Refuse a limit in which the planner makes no plan of so many ops: LimitError. 0 is none."""
        needed = self.entry.least_time(self.graph, self.device)
        if 0 < time_limit < needed - LEAST_TIME:
            raise too_short(time_limit, self.entry.name, needed, self.graph)

    def until(self, time_limit: float | None, after: float = 0.0) -> float:
        """The time.perf_counter() at which the limit is reached, if `check_time` takes it; infinite without a limit.

        The bound that the result will have is made now, so that it is within the limit; the rest has its least time. So
        many seconds of it, at most a third, are left for what comes after.
        """
        if time_limit is None:
            return math.inf
        self.check_time(time_limit)
        time_limit -= min(after, time_limit / 3)
        if time_limit and self.entry.free and not isinstance(self.problem, GraphFamily):
            recompute_bound(self.graph, self.device)  # kept with the graph
        return max(self.started + time_limit, time.perf_counter() + LEAST_TIME)

    @property
    def budget(self) -> str:
        """M, to be shown."""
        return told_memory(self.device.memory, unit_written(self.device), self.problem)

    def told(self, count: int) -> str:
        """A memory that is enough, to be shown: in the unit of M, and not rounded down."""
        return told_bytes(count, unit_written(self.device), self.problem, up=True)

    def no_plan(self, needed: int, reason: str, *, enough: bool = False) -> InfeasibleError:
        """The error for "no plan": the reason, and the memory needed; `enough`: it suffices, but less may do."""
        least = self.told(needed)
        needs = f"{least} is enough, and less may do" if enough else f"it needs at least {least}"
        has_none = f"{self.entry.name} has no plan for '{self.graph.name}' in {self.budget}"
        return InfeasibleError(f"{has_none}: {reason}; {needs}", needed)


def begin(
    plan: Callable[..., Result],
    problem: Problem,
    M: Quantity | None,
    beta: Quantity | None,
    device: Device | None,
    chunk: ChunkLike = None,
) -> Call:
    """Check the arguments that all planners share: problem, M, beta, device and chunk."""
    started, chunk = time.perf_counter(), quantities.chunk(chunk)
    graph = graph_of(problem, chunk)
    ENTRIES[plan].check_repeats(graph)
    device = make_device(problem, M, beta, device)
    return Call(entry=ENTRIES[plan], problem=problem, graph=graph, device=device, started=started, chunk=chunk)


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
    both: bool = False,
) -> Result:
    """Simulate a schedule and make a Result with a lower bound. A plan that meets the bound is proven optimal.

    `placement` is given if the planner already knows the addresses. `recomputes` says whether the planner may
    recompute; if so, the bound holds for plans that recompute. For a family the bound is on plans with the same rounds.
    `both`: the larger of both bounds is taken, for a planner that has the time.
    """
    timeline = simulate(problem, schedule, device)
    bound_on = "all" if recomputes else "once"
    if both:
        bound, bound_on = strongest_bound(problem, schedule, device)
    else:
        bound = bound_of(problem, schedule, device, bound_on)
    return Result(
        planner=planner,
        params=params,
        problem=problem,
        device=device,
        schedule=schedule,
        timeline=timeline,
        placement=placement or placement_of(schedule, largest_graph(problem, schedule)),
        estimate=estimate,
        lower_bound=certified(bound, timeline.makespan),
        bound_on=bound_on,
        runtime=time.perf_counter() - started,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A plan without its problem and timeline: what is needed to simulate it again.

    It holds no reference to the problem, so caching it with a problem does not keep the problem alive.
    """

    planner: str
    params: dict[str, Any]
    device: Device
    schedule: Schedule
    placement: Placement | None
    estimate: float | None
    recomputes: bool
    both: bool

    @classmethod
    def of(cls, plan: Result) -> Draft:
        """The draft of a result."""
        kept = fields(plan, "planner", "params", "device", "schedule", "placement", "estimate")
        on_all = plan.bound_on == "all"
        free = next((one.free for one in ENTRIES.values() if one.name == plan.planner), on_all)
        return cls(**kept, recomputes=free, both=on_all and not free)

    def on(self, problem: Problem, device: Device) -> Result:
        """The same steps, simulated on a device with no less memory, bandwidth or host memory and no more latency.

        They run there and take no longer (docs/schedule.md, "No anomalies"). params["planned_for"] is the device that
        they were planned for.
        """
        params, schedule = (
            {"planned_for": self.device.to_json(), **self.params},
            self.schedule.with_budget(device.memory),
        )
        return measured(
            *(self.planner, params, problem, schedule, device, time.perf_counter()),
            estimate=self.estimate,
            recomputes=self.recomputes,
            placement=self.placement,
            both=self.both,
        )


def too_short(time_limit: float, name: str, needed: float, graph: Graph) -> LimitError:
    """The error for a limit in which a planner has no plan of a large graph."""
    return LimitError(
        f"time_limit is {time_limit:.3g} s, and {name} takes about {needed:.1g} s for a plan of "
        f"{op_count(graph):,} ops; give more"
    )


def without_link(device: Device, moved: int, copies: int = 0) -> bool:
    """Whether the device has no link, or one so slow that this many bytes and copies take forever."""
    slowest = min(device.d2h, device.h2d)
    if slowest == 0 or moved > sys.float_info.max * slowest:
        return True
    return copies > 0 and not math.isfinite(1e6 * (copies * device.latency + moved / slowest))


def no_link(problem: Problem) -> str:
    """That there is none, and which a profile has."""
    known = None
    with suppress(InvalidInputError):  # of a chain that says of itself what it likes
        known = profile_link(problem)
    its = "" if known is None else f"; the profile's is {format_bandwidth(known)}"
    return f"without a link (beta is 0, missing or next to nothing{its})"


def check_memory(
    call: Call, min_memory: Callable[[], int], recomputing: Callable[[], int] | None = None, copies: int = 0
) -> None:
    """Refuse a memory below the planner's minimum, or, without a link, below the plain peak: InfeasibleError."""
    device, peak = call.device, peak_of(call.graph)
    if device.memory >= peak:
        return
    linked, alone = not without_link(device, peak, copies), peak if recomputing is None else recomputing()
    needed = min_memory() if linked else alone
    if device.memory >= needed:
        return
    reason = "some stage does not fit"
    if not linked and recomputing is None:
        reason = f"{no_link(call.problem)} everything must stay"
    elif (not linked or not call.entry.uses_link) and device.memory >= least_memory(call.problem):
        reason = "each stage alone fits, but the plan offloads nothing, so the input and checkpoints stay beside it"
    error = call.no_plan(needed, reason)
    if linked and needed < min(peak, alone) and device.host_memory is not None:
        more = f", and more where what must leave exceeds host_memory = {exact_bytes(device.host_memory)}"
        raise InfeasibleError(f"{error}{more}", needed)
    raise error


def seconds_left(until: float) -> float | None:
    """Seconds left until a moment, for the core; None without a limit."""
    return None if until == math.inf else max(0.0, until - time.perf_counter())


_UNTIL: ContextVar[float] = ContextVar("until", default=math.inf)


@contextmanager
def tried_until(until: float) -> Iterator[None]:
    """Within this, no memories nor batches are tried when time.perf_counter() has reached `until`."""
    token = _UNTIL.set(until)
    try:
        yield
    finally:
        _UNTIL.reset(token)


def sooner(until: float) -> float:
    """The moment `until`, or that of `tried_until`, whichever comes first."""
    return min(until, _UNTIL.get())


def by_bisection(runs: Callable[[int], bool], low: int, high: int, until: float = math.inf) -> int:
    """An M in (low, high] with a plan, while one byte less has none. There must be a plan at `high`.

    When time.perf_counter() reaches `until`, or `runs` raises a LimitError, the least M known to have a plan.
    """
    while high - low > 1 and time.perf_counter() < sooner(until):
        middle = (low + high) // 2
        try:
            low, high = (low, middle) if runs(middle) else (middle, high)
        except LimitError:
            break
    return high


def far_apart(count: int) -> npt.NDArray[np.int64]:
    """The numbers below `count`, ordered so that any first few of them lie far apart."""
    numbers, strides = np.arange(count), (2**power for power in range(count.bit_length(), 0, -1))
    return np.concatenate([numbers[stride // 2 :: stride] for stride in strides] + [numbers[:1]])

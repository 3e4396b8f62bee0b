"""What all planners share: checking the call, and wrapping a schedule into a Result that the simulator measured."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from memsched import _core
from memsched._core import Chain, ChainPlans, Device, Graph, Schedule
from memsched.arena.placement import Placement
from memsched.arena.residency import placement_of
from memsched.errors import InfeasibleError, InvalidInputError, LimitError
from memsched.problems.bounds import bound_of, certified
from memsched.problems.problem import ChunkLike, Problem, graph_of, largest_graph, make_device, peak_of, simulate
from memsched.result import Result
from memsched.support.memo import once_an_object
from memsched.support.types import Flags

# Of many devices at once: (makespan, lower_bound, peak_memory, estimate, bytes_out, bytes_in, idle, offloaded, runtime)
# of each, or None where it must be planned alone.
Figures: TypeAlias = Callable[[Sequence[Device]], list[tuple[Any, ...] | None]]

LEAST_TIME = 0.15  # seconds: what is ready so soon is never cut short
SETS = 64  # rows of flags that are there at a time, fewer ..
SIMULATED = 2_000_000  # .. where so many ops are simulated for them: about 0.2 s


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTask:
    """One call of a planner that decides which blocks of tensors travel.

    Attributes
    ----------
    problem : Chain, Graph or GraphFamily
    graph : Graph
        The chain, cut as `chunk` says, or the graph with one algorithm an op.
    device : Device
        Its memory is the budget M.
    chunk : None, int or "storage"
    started : float
        When the call began, for Result.runtime.
    blocks : int
        How many blocks there are.
    stage : ndarray of int, one entry a tensor
        The block that the tensor is a part of, else -1. Of a chain block k is a^k and tape^k, k < n.
    workspace_limit : int, optional
        Of a graph: bytes of workspace within which each op takes its fastest algorithm.
    """

    problem: Problem
    graph: Graph
    device: Device
    chunk: ChunkLike
    started: float
    blocks: int
    stage: npt.NDArray[np.int64]
    workspace_limit: int | None = None

    @property
    def excess(self) -> int:
        """Bytes by which the plain run exceeds M; <= 0 when it fits."""
        return peak_of(self.graph) - self.device.memory

    @property
    def capacity(self) -> int:
        """Bytes for everything but what is resident."""
        return self.device.memory - self.graph.resident

    def tensors(self, stages: Flags) -> Flags:
        """Flags of tensors for flags of blocks, one row or many."""
        padded = np.concatenate([stages, np.zeros((*stages.shape[:-1], 1), np.uint8)], axis=-1)
        return np.ascontiguousarray(padded[..., self.stage])

    def host_error(self, planner: str) -> InfeasibleError:
        """What to raise when nothing that fits the device fits the host too."""
        if self.device.host_memory is None:
            return InfeasibleError(
                f"{planner} found no plan of finite length for '{self.graph.name}' in {self.device.memory} bytes; "
                f"the link is too slow, and without it M must be {self.device.memory + self.excess}",
                self.device.memory + self.excess,
            )
        sizes = _core.tensor_bytes(self.graph)
        room, spared = self.device.host_memory, 0
        for tensor in _core.movable_tensors(self.graph):
            if spared + sizes[tensor] > room:
                break
            spared += int(sizes[tensor])
        needed = max(self.device.memory + 1, self.device.memory + self.excess - spared)
        return InfeasibleError(
            f"{planner} has no plan for '{self.graph.name}' in {self.device.memory} bytes with host_memory = {room}: "
            f"what must leave does not fit the host; raise host_memory, or M to about {needed}",
            needed,
        )

    def makespans(
        self, rows: Flags, *, ahead: int | None = None, stall: bool = True, until: float = math.inf
    ) -> npt.NDArray[np.float64]:
        """Simulated makespans (seconds) of rows of tensor flags; infinite where a set does not run.

        So are those that are left when time.perf_counter() is at `until`.
        """
        graph, device, seconds = self.graph, self.device, seconds_left(until)
        found = _core.offload_set_makespans(graph, device, device.memory, rows, ahead, stall, time_limit=seconds)
        return np.array(found)

    def makespans_of_many(
        self,
        sets: Callable[[npt.NDArray[np.int64]], Flags],
        count: int,
        *,
        time_limit: float | None = None,
        aheads: Sequence[int | None] = (None,),
        stall: bool = True,
    ) -> npt.NDArray[np.float64]:
        """The same of so many sets of blocks, `sets` by their numbers, one row a lookahead; few are there at a time.

        A time limit is of the whole call; it comes to numbers far apart first.

        Raises
        ------
        LimitError
            There was no time for one that runs.
        """
        found = np.full((len(aheads), count), math.inf)
        order = np.arange(count) if time_limit is None else far_apart(count)
        step = max(1, min(SETS, SIMULATED // max(1, len(self.stage) * len(aheads))))
        until = over_at(self.started, time_limit)
        for at in range(0, len(order), step):
            numbers = order[at : at + step]
            rows = self.tensors(sets(numbers))
            for line, ahead in zip(found, aheads, strict=True):
                line[numbers] = self.makespans(rows, ahead=ahead, stall=stall, until=until)
            if time.perf_counter() >= until:
                break
        if time.perf_counter() >= until and not np.isfinite(found).any():
            raise LimitError(
                f"time_limit is {time_limit} seconds, and none of the sets that were tried runs; give more"
            )
        return found

    def check_host(self, planner: str, tensors: Flags) -> None:
        """Refuse a set that does not fit host_memory with an InfeasibleError."""
        limit = self.device.host_memory
        if limit is not None and int(_core.tensor_bytes(self.graph)[tensors != 0].sum()) > limit:
            raise self.host_error(planner)

    def schedule(self, tensors: Flags, planner: dict[str, Any], ahead: int | None = None) -> Schedule:
        """The no-wait schedule of one set.

        Raises
        ------
        InfeasibleError
            The set does not fit host_memory.
        """
        self.check_host(planner["name"], tensors)
        graph = self.graph if self.workspace_limit is None else graph_of(self.problem)
        return _core.offload_set_schedule(
            graph, self.device.memory, tensors, planner, self.chunk, ahead, self.workspace_limit
        )

    def result(
        self,
        planner: str,
        params: dict[str, Any],
        schedule: Schedule,
        *,
        estimate: float | None = None,
        recomputes: bool = False,
    ) -> Result:
        """Simulate, bound and wrap, as `measured` does."""
        return measured(
            planner,
            params,
            self.problem,
            schedule,
            self.device,
            self.started,
            estimate=estimate,
            recomputes=recomputes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainTask(SetTask):
    """One call of a planner of chains.

    Attributes
    ----------
    tape : ndarray of bool, one entry a tensor
        Whether it is (a piece of) a tape^k.
    """

    tape: npt.NDArray[np.bool_]

    @property
    def chain(self) -> Chain:
        """The problem."""
        assert isinstance(self.problem, Chain)
        return self.problem

    @property
    def plans(self) -> ChainPlans:
        """What plans of the chain share on all devices."""
        return plans_of(self.chain, self.chunk)

    def plan(
        self, planner: dict[str, Any], params: dict[str, Any], tensors: Flags, estimate: float | None = None
    ) -> Result:
        """The no-wait schedule of one set, simulated and bounded; refuses one that does not fit host_memory."""
        self.check_host(planner["name"], tensors)
        schedule, timeline, bound = self.plans.plan(tensors, self.device, planner, self.chunk)
        return Result(
            planner=planner["name"],
            params=params,
            problem=self.problem,
            device=self.device,
            schedule=schedule,
            timeline=timeline,
            estimate=estimate,
            lower_bound=certified(bound, timeline.makespan),
            runtime=time.perf_counter() - self.started,
        )


@once_an_object
def plans_of(chain: Chain, chunk: ChunkLike = None) -> ChainPlans:
    """What plans of GREEDY and DYNPROG on one chain share."""
    seconds = float(chain.forward_time.sum() + chain.backward_time.sum())
    return ChainPlans(chain, graph_of(chain, chunk), chunk is not None, seconds)


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


def without_link(device: Device, moved: int, copies: int = 0) -> bool:
    """Whether the device has no link, or one on which so many bytes, in so many copies, never arrive."""
    slowest = min(device.d2h, device.h2d)
    if slowest == 0 or moved > sys.float_info.max * slowest:
        return True
    return copies > 0 and not math.isfinite(1e6 * (copies * device.latency + moved / slowest))


def start(
    planner: str,
    problem: Problem,
    M: float | None,
    beta: float | None,
    device: Device | None,
    chunk: ChunkLike = None,
    *,
    min_memory: Callable[[Chain], int] = lambda _: 0,
    recomputing: Callable[[Chain], int] | None = None,
) -> ChainTask:
    """Check a call of a chain planner, and that it can succeed.

    `min_memory` counts where there is a link; without one a planner needs the peak of the plain run, or what
    `recomputing` says.

    Raises
    ------
    InvalidInputError
        A bad problem, M, beta, device or chunk.
    InfeasibleError
        M is below the planner's minimum, or below the peak when there is no link.
    """
    started = time.perf_counter()
    if not isinstance(problem, Chain):
        raise InvalidInputError(f"problem is a {type(problem).__name__}; {planner} plans a Chain")
    device = make_device(M, beta, device)
    graph = graph_of(problem, chunk)
    check_memory(
        planner,
        graph,
        device,
        lambda: min_memory(problem),
        None if recomputing is None else lambda: recomputing(problem),
    )
    stage, tape = _stages(graph)
    return ChainTask(
        problem=problem,
        graph=graph,
        device=device,
        chunk=chunk,
        started=started,
        blocks=problem.n,
        stage=stage,
        tape=tape,
    )


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


@once_an_object
def _stages(graph: Graph) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """The stage of each tensor of a chain's graph, -1 for what does not travel, and whether it is a tape."""
    stage, tape = _core.stages_of_tensors(graph)
    stage.setflags(write=False)
    tape.setflags(write=False)
    return stage, tape

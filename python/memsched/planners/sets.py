"""Planners that choose an offload set: their calls."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from memsched import _core
from memsched._core import Chain, ChainPlans, Device, Graph, Schedule
from memsched.errors import InfeasibleError, LimitError
from memsched.planners.call import Call, begin, check_memory, far_apart, seconds_left
from memsched.planners.entry import ENTRIES
from memsched.problems.bounds import certified
from memsched.problems.fluid import compute_time
from memsched.problems.problem import ChunkLike, Problem, graph_of, no_chain
from memsched.result import Result
from memsched.support import quantities
from memsched.support.formats import exact_bytes
from memsched.support.memo import once_per_object
from memsched.support.types import Flags, Quantity

SETS = 64  # rows of flags in memory at a time; fewer ..
SIMULATED = 2_000_000  # .. if they simulate more ops than this, about 0.2 s


@dataclass(frozen=True, slots=True, kw_only=True)
class SetCall(Call):
    """One call of a planner that chooses an offload set among candidates."""

    # The candidate of each tensor, or -1: those of a candidate are offloaded together. In a chain, k is a^k and tape^k.
    stage: npt.NDArray[np.int64]

    def tensors(self, stages: Flags) -> Flags:
        """Flags of tensors from flags of candidates, one row or many."""
        padded = np.concatenate([stages, np.zeros((*stages.shape[:-1], 1), np.uint8)], axis=-1)
        return np.ascontiguousarray(padded[..., self.stage])

    def host_error(self) -> InfeasibleError:
        """The error if nothing fits both the device and the host."""
        name, memory, budget = f"'{self.graph.name}'", self.device.memory, self.budget
        if self.device.host_memory is None:
            return InfeasibleError(
                f"{self.entry.name} found no plan of finite length for {name} in {budget}; "
                f"the link is too slow, and without it all must stay, which needs {self.told(memory + self.excess)}",
                memory + self.excess,
            )
        room, moved = self.device.host_memory, _core.tensor_bytes(self.graph)[_core.movable_tensors(self.graph)]
        together = np.cumsum(moved)
        needed = max(memory + 1, memory + self.excess - int(together[together <= room].max(initial=0)))
        return InfeasibleError(
            f"{self.entry.name} has no plan for {name} in {budget} with host_memory = {exact_bytes(room)}: "
            f"what must leave does not fit the host; raise host_memory, or M to about {self.told(needed)}",
            needed,
        )

    def makespans(
        self, rows: Flags, *, ahead: int | None = None, stall: bool = True, until: float = math.inf
    ) -> npt.NDArray[np.float64]:
        """Simulated makespans (seconds) of rows of tensor flags; infinite if a set does not run.

        Rows not reached when time.perf_counter() == `until` are infinite too.
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
        """The makespans of many sets of candidates, one row per lookahead; `sets` makes a few from their numbers.

        The time limit is that of the whole call. Sets are tried in an order of numbers that lie far apart. LimitError:
        time ran out before a set that runs was found.
        """
        found = np.full((len(aheads), count), math.inf)
        order = np.arange(count) if time_limit is None else far_apart(count)
        step = max(1, min(SETS, SIMULATED // max(1, len(self.stage) * len(aheads))))
        until = self.until(time_limit)
        for at in range(0, len(order), step):
            numbers = order[at : at + step]
            rows = self.tensors(sets(numbers))
            for line, ahead in zip(found, aheads, strict=True):
                line[numbers] = self.makespans(rows, ahead=ahead, stall=stall, until=until)
            if time.perf_counter() >= until:
                break
        if time.perf_counter() >= until and not np.isfinite(found).any():
            raise LimitError(f"time_limit is {time_limit} seconds, and no set tried so far runs; give more")
        return found

    def check_host(self, tensors: Flags) -> None:
        """Refuse a set that does not fit host_memory with an InfeasibleError."""
        limit = self.device.host_memory
        if limit is not None and int(_core.tensor_bytes(self.graph)[tensors != 0].sum()) > limit:
            raise self.host_error()

    def schedule(self, tensors: Flags, planner: dict[str, Any], ahead: int | None = None) -> Schedule:
        """The no-wait schedule of one set; InfeasibleError if the set does not fit host_memory."""
        self.check_host(tensors)
        graph = self.graph if self.workspace_limit is None else graph_of(self.problem)
        return _core.offload_set_schedule(
            graph, self.device.memory, tensors, planner, self.chunk, ahead, self.workspace_limit
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainCall(SetCall):
    """One call of a planner of chains."""

    tape: npt.NDArray[np.bool_]  # whether the tensor is (a piece of) some tape^k

    @property
    def chain(self) -> Chain:
        """The problem."""
        assert isinstance(self.problem, Chain)
        return self.problem

    @property
    def plans(self) -> ChainPlans:
        """Data of the chain that its plans share on all devices."""
        return plans_of(self.chain, self.chunk)

    def plan(
        self, planner: dict[str, Any], params: dict[str, Any], tensors: Flags, estimate: float | None = None
    ) -> Result:
        """The Result of the no-wait schedule of one set; refuses a set that does not fit host_memory."""
        self.check_host(tensors)
        schedule, timeline, bound = self.plans.plan(tensors, self.device, planner, self.chunk)
        return Result(
            planner=self.entry.name,
            params=params,
            problem=self.problem,
            device=self.device,
            schedule=schedule,
            timeline=timeline,
            estimate=estimate,
            lower_bound=certified(bound, timeline.makespan),
            runtime=time.perf_counter() - self.started,
        )


@once_per_object
def plans_of(chain: Chain, chunk: ChunkLike = None) -> ChainPlans:
    """Data of a chain that plans of GREEDY and DYNPROG share."""
    return ChainPlans(chain, graph_of(chain, chunk), chunk is not None, compute_time(chain))


def least_of_fluid_model(chain: Chain) -> int:
    """The least memory in the paper's model, in which a stage saves a single activation; at most the plain peak."""
    return plans_of(chain).fluid_least


def begin_chain(
    plan: Callable[..., Result],
    problem: Problem,
    M: Quantity | None,
    beta: Quantity | None,
    device: Device | None,
    chunk: ChunkLike = None,
    *,
    least: bool = True,
) -> ChainCall:
    """Check a call of a planner of chains, and that it can succeed; with `least` also against its own minimum.

    InfeasibleError: M is below the planner's minimum, or below the peak when there is no link.
    """
    entry = ENTRIES[plan]
    if not isinstance(problem, Chain):
        raise no_chain(problem, entry.name)
    call, alone = begin(plan, problem, M, beta, device, chunk), entry.needs_alone
    needs_alone = None if alone is None else partial(alone, problem)
    check_memory(call, partial(entry.needs, problem) if least else int, needs_alone, copies=1)
    stage, tape = _stages(call.graph)
    return ChainCall(**call.facts, stage=stage, tape=tape)


def begin_sets(
    plan: Callable[..., Result],
    problem: Problem,
    M: Quantity | None,
    beta: Quantity | None,
    device: Device | None,
    chunk: ChunkLike,
    workspace_limit: object,
) -> SetCall:
    """Check a call for a chain or a graph. In a graph every tensor that may be offloaded is its own candidate.

    InfeasibleError: M is below the least of any plan, or below the peak when there is no link.
    """
    limit = quantities.size("workspace_limit", workspace_limit)
    if isinstance(problem, Chain):
        return begin_chain(plan, problem, M, beta, device, chunk)
    call = begin(plan, problem, M, beta, device, chunk)
    graph = _core.fixed_choices(call.graph, limit)
    call = replace(call, graph=graph, workspace_limit=limit)
    movable = _core.movable_tensors(graph)
    moved = int(np.asarray(_core.tensor_bytes(graph))[movable].sum())
    host = call.device.host_memory
    if host is not None and host < moved and call.excess > 0:
        reason = (
            f"the host takes {exact_bytes(host)}, not the {exact_bytes(moved)} that could be offloaded: all must stay"
        )
        raise call.no_plan(call.device.memory + call.excess, reason)
    check_memory(call, lambda: need_of_moving_all(graph), copies=len(movable))
    stage = np.full(_core.tensor_count(graph), -1, dtype=np.int64)
    stage[movable] = np.arange(len(movable))
    return SetCall(**call.facts, stage=stage)


def need_of_moving_all(graph: Graph) -> int:
    """The least M if every tensor is offloaded whenever possible. All ops must have one algorithm."""
    lives, movable = _core.Lifetimes(graph), _core.movable_tensors(graph)
    sizes = np.asarray(_core.tensor_bytes(graph), dtype=np.int64)[movable]
    away = np.zeros(_core.op_count(graph) + 1, dtype=np.int64)
    np.add.at(away, np.maximum(np.asarray(lives.last_forward, dtype=np.int64)[movable], 0) + 1, sizes)
    np.subtract.at(away, np.asarray(lives.first_backward, dtype=np.int64)[movable], sizes)
    return graph.resident + int((np.asarray(lives.usage) - np.cumsum(away)[:-1]).max())


@once_per_object
def _stages(graph: Graph) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """The stage of each tensor of a chain's graph, -1 if it cannot be offloaded, and whether it is a tape."""
    stage, tape = _core.stages_of_tensors(graph)
    stage.setflags(write=False)
    tape.setflags(write=False)
    return stage, tape

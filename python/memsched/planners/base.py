"""What all planners share: checking the call, and wrapping a schedule into a Result that the simulator measured."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from memsched import _core
from memsched._core import Chain, Device, Graph, Schedule
from memsched.bounds import graph_bound, recompute_bound
from memsched.errors import InfeasibleError, InvalidInputError
from memsched.family import GraphFamily
from memsched.fluid import Flags
from memsched.problem import ChunkLike, Problem, graph_of, make_device, simulate
from memsched.result import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainTask:
    """One call of a chain planner.

    Attributes
    ----------
    chain, graph : Chain and Graph
        The graph is the chain, cut as `chunk` says.
    device : Device
        Its memory is the budget M.
    chunk : None, int or "storage"
    started : float
        When the call began, for Result.runtime.
    stage : ndarray of int, one entry a tensor
        k where the tensor is (a piece of) a^k or tape^k with k < n, else -1.
    tape : ndarray of bool, one entry a tensor
        Whether it is (a piece of) a tape^k.
    """

    chain: Chain
    graph: Graph
    device: Device
    chunk: ChunkLike
    started: float
    stage: npt.NDArray[np.int64]
    tape: npt.NDArray[np.bool_]

    @property
    def excess(self) -> int:
        """Bytes by which the plain run exceeds M; <= 0 when it fits."""
        return _core.graph_peak_memory(self.graph) - self.device.memory

    @property
    def capacity(self) -> int:
        """Bytes for everything but what is resident."""
        return self.device.memory - self.chain.resident

    def tensors(self, stages: Flags) -> Flags:
        """Flags of tensors for flags of stages, one row or many: x_k is a^k and tape^k."""
        padded = np.concatenate([stages, np.zeros((*stages.shape[:-1], 1), np.uint8)], axis=-1)
        return np.ascontiguousarray(padded[..., self.stage])

    def host_error(self, planner: str) -> InfeasibleError:
        """What to raise when nothing that fits the device fits the host too."""
        if self.device.host_memory is None:
            return InfeasibleError(
                f"{planner} found no plan of finite length for '{self.chain.name}' in {self.device.memory} bytes; "
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
            f"{planner} has no plan for '{self.chain.name}' in {self.device.memory} bytes with host_memory = {room}: "
            f"what must leave does not fit the host; raise host_memory, or M to about {needed}",
            needed,
        )

    def makespans(self, rows: Flags, *, ahead: int | None = None, stall: bool = True) -> npt.NDArray[np.float64]:
        """Simulated makespans (seconds) of rows of tensor flags; infinite where a set does not run."""
        return np.array(_core.offload_set_makespans(self.graph, self.device, self.device.memory, rows, ahead, stall))

    def schedule(self, tensors: Flags, planner: dict[str, Any], ahead: int | None = None) -> Schedule:
        """The no-wait schedule of one set.

        Raises
        ------
        InfeasibleError
            The set does not fit host_memory.
        """
        limit = self.device.host_memory
        if limit is not None and int(_core.tensor_bytes(self.graph)[tensors != 0].sum()) > limit:
            raise self.host_error(planner["name"])
        return _core.offload_set_schedule(self.graph, self.device.memory, tensors, planner, self.chunk, ahead)

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
            self.chain,
            schedule,
            self.device,
            self.started,
            estimate=estimate,
            recomputes=recomputes,
        )


def measured(
    planner: str,
    params: dict[str, Any],
    problem: Problem,
    schedule: Schedule,
    device: Device,
    started: float,
    *,
    estimate: float | None = None,
    recomputes: bool = False,
) -> Result:
    """Simulate, bound and wrap. A plan that meets the bound is proven optimal.

    `recomputes` tells whether the planner's decision space has recomputation: then the bound must hold for it. Of a
    family the bound is on plans that split the batch in the same way.
    """
    timeline = simulate(problem, schedule, device)
    bound = 0.0
    for batch, times in schedule.rounds:
        graph = problem.at(batch) if isinstance(problem, GraphFamily) else graph_of(problem, schedule.chunk)
        bound += times * (recompute_bound(graph, device) if recomputes else graph_bound(graph, device))
    if bound <= timeline.makespan * (1 + 1e-9):  # Result refuses what is more than rounding
        bound = min(bound, timeline.makespan)
    return Result(
        planner=planner,
        params=params,
        problem=problem,
        device=device,
        schedule=schedule,
        timeline=timeline,
        estimate=estimate,
        lower_bound=bound,
        optimal=timeline.makespan <= bound * (1 + 1e-12),
        runtime=time.perf_counter() - started,
    )


def without_link(device: Device, moved: int) -> bool:
    """Whether the device has no link, or one on which so many bytes never arrive."""
    slowest = min(device.d2h, device.h2d)
    return slowest == 0 or moved > sys.float_info.max * slowest


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
    graph = _core.to_graph(problem, chunk)
    needed = _core.graph_peak_memory(graph)
    no_link = without_link(device, needed)
    if device.memory < needed:
        if not no_link:
            needed = min_memory(problem)
        elif recomputing is not None:
            needed = recomputing(problem)
    if device.memory < needed:
        reason = (
            "without a link (beta is 0, missing or next to nothing) everything must stay"
            if no_link and recomputing is None
            else "some stage does not fit"
        )
        raise InfeasibleError(
            f"{planner} has no plan for '{problem.name}' in {device.memory} bytes: {reason}; it needs M >= {needed}",
            needed,
        )
    names = [tensor["name"] for tensor in graph.tensors]
    stage = np.array([_stage(name, problem.n) for name in names], dtype=np.int64)
    tape = np.array([name.startswith("tape") for name in names], dtype=np.bool_)
    return ChainTask(chain=problem, graph=graph, device=device, chunk=chunk, started=started, stage=stage, tape=tape)


def _stage(tensor: str, n: int) -> int:
    whole = tensor.split("/")[0]
    for kind in ("tape", "a"):
        if whole.startswith(kind):
            k = int(whole[len(kind) :])
            return k if k < n else -1
    return -1

"""moDNN (Chen et al., DATE 2018): sub-batches, offloading, prefetching and algorithms in contiguous memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal

from memsched import _core
from memsched._core import Device, Schedule
from memsched.errors import InfeasibleError, InvalidInputError, LimitError, ScheduleError
from memsched.planners.call import Call, begin, by_bisection, seconds_left, tried_until, without_link
from memsched.planners.entry import Planner
from memsched.planners.rounds import Rounds, balanced, rounds_of, smallest
from memsched.problems.family import GraphFamily, count_rounds
from memsched.problems.problem import Problem, altered, graph_of, largest_graph, simulate
from memsched.result import Result
from memsched.support import checks, quantities
from memsched.support.checks import EXACT_BYTES
from memsched.support.types import Progress, Quantity


def least_memory(problem: Problem) -> int:
    """Eq. (2), for a family at the smallest batch of its rounds; at least the bytes of inputs and weights."""
    return _core.modnn_min_memory(smallest(problem) if isinstance(problem, GraphFamily) else graph_of(problem))


@Planner(
    "sub-batches, offloading and algorithms, with addresses",
    needs=least_memory,
    problems=("graph",),
    seconds_an_op=(1e-4, 1e-4),
)
def modnn(
    problem: Problem,
    M: Quantity | None = None,
    beta: Quantity | None = None,
    *,
    device: Device | None = None,
    rounds: Literal["fewest", "search"] = "fewest",
    foresee: bool = True,
    gpus: int = 1,
    memory_bandwidth: Quantity = math.inf,
    time_limit: Quantity | None = None,
    progress: Progress = None,
) -> Result:
    """Split the batch so that each op fits with its fastest algorithm, then plan in one pass over the ops.

    Memory is contiguous: the plan has addresses. If an op finds no room, the offloading scheme with the least delay
    makes some, with offloads placed retroactively where the link was idle. The last resort is to move everything out
    and back without holes. An algorithm is chosen by the delay that its workspace causes (eq. 5). Tensors are
    prefetched when later would be too late (eq. 4), unless that leaves one of the next ops without room. O(ops x
    segments), and more if memory is scarce.

    Parameters
    ----------
    problem : Chain, Graph or GraphFamily
        Only a family can be split into rounds.
    rounds : "fewest" or "search"
        Eq. (3) gives the fewest rounds, n. "search" also simulates n + 1, n + 2, n + 3, 2 n and 3 n, since more rounds
        can need fewer transfers, each with and without line 16.
    foresee : bool
        Line 16 of Algorithm 1: prefetch only what leaves room for the ops until its use.
    gpus : int
        1 or 2. Two GPUs share the link and get half the batch each; the plan is for one of them at half the bandwidth.
        params["exchange_time"] is the time to exchange and add the gradients of the weights, in seconds, which comes on
        top.
    memory_bandwidth : float or str
        Bytes per second at which a device adds gradients, for `gpus=2`.

    Returns
    -------
    Result
        Its problem is the family (at half the batch with `gpus=2`). lower_bound holds for the same rounds.

    Raises
    ------
    InfeasibleError
        M is below eq. (2): resident plus the largest need of one op (for a family at batch 1).
    LimitError
        Time ran out before the first plan was ready, or the times of so many rounds overflow.

    References
    ----------
    Chen, Chen, Hu, "moDNN: memory optimal DNN training on GPUs", DATE 2018, Algorithm 1 and eq. (1) to (5).

    Examples
    --------
    >>> import memsched as ms
    >>> family = ms.profiles.analytic("vgg16", 256, "k40m")
    >>> result = ms.modnn(family, 12 * 2**30, 10e9)
    >>> result.schedule.rounds, result.schedule.memory
    (((86, 1), (85, 2)), 'contiguous')
    """
    call = begin(modnn, problem, M, beta, device)
    checks.choice("rounds", rounds, ("fewest", "search"))
    gpus = checks.count("gpus", gpus, 1, 2)
    added = quantities.bandwidth("memory_bandwidth", memory_bandwidth)
    until = call.until(quantities.time_limit(time_limit) or None)
    foresee = checks.flag("foresee", foresee)
    params: dict[str, Any] = {"rounds": rounds, "foresee": foresee, "gpus": gpus}
    if gpus == 2:
        half, shared, params["exchange_time"] = _one_gpu_of_two(problem, call.device, added)
        call = replace(call, problem=half, graph=half.graph, device=shared)
    everything, host = int(_core.tensor_bytes(call.graph).sum()), call.device.host_memory
    linked = not without_link(call.device, everything, _core.tensor_count(call.graph))
    walk = _Rounds(
        call=call,
        planner={"name": "modnn", **params},
        foresee=foresee,
        search=rounds == "search",
        progress=progress,
        until=until,
        linked=linked,
        free=linked and (host is None or host >= everything),
    )
    with tried_until(until):
        schedule = walk.best(call.device.memory)
        if schedule is not None:
            return call.result(params, schedule)
        least, reason = least_memory(call.problem), "some op does not fit"
        if not walk.free:
            least = walk.least()
            reason = f"{reason}, or too much must stay without a link or with a host this small"
    if call.device.memory >= least:
        raise LimitError(f"modnn has no plan for '{call.problem.name}': the times of so many rounds overflow")
    raise call.no_plan(least, reason, enough=not walk.free)  # more memory may have none: it decides greedily


def _one_gpu_of_two(problem: Problem, device: Device, added: float) -> tuple[GraphFamily, Device, float]:
    """The problem and device of one GPU of two, plus the seconds to exchange the gradients of the weights."""
    if not isinstance(problem, GraphFamily) or problem.batch % 2 == 1:
        raise InvalidInputError("gpus is 2, which halves the batch; give a GraphFamily with an even batch")
    if min(device.d2h, device.h2d) == 0 or added == 0:
        raise InvalidInputError("gpus is 2, but gradients cannot be exchanged at a bandwidth of 0; give one")
    half = problem.at_most(problem.batch // 2)
    gradients = problem.graph.resident / 2  # gradients of the weights; the other half are the weights
    exchange = gradients / device.d2h + gradients / device.h2d + 3 * gradients / added
    if not math.isfinite(exchange):
        raise InvalidInputError("gpus is 2, but the link is too slow to ever exchange gradients; give a faster one")
    return half, altered(device, d2h=device.d2h / 2, h2d=device.h2d / 2), exchange


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rounds:
    """The plans of one problem at any memory, over candidate rounds."""

    call: Call
    planner: dict[str, Any]
    foresee: bool
    search: bool
    progress: Progress
    until: float
    linked: bool  # whether all tensors can travel in finite time
    free: bool  # and the host takes them all

    def least(self) -> int:
        """A memory above the device's at which a plan runs, while with one byte less none does; less may do."""
        high = 2 * self.call.device.memory
        while high < EXACT_BYTES and self.best(high) is None:
            high *= 2
        high = min(high, EXACT_BYTES)
        return by_bisection(lambda memory: self.best(memory) is not None, self.call.device.memory, high, self.until)

    def best(self, memory: int) -> Schedule | None:
        """The fastest plan that runs, or None."""
        if memory < least_memory(self.call.problem):
            return None
        device = altered(self.call.device, memory=memory)
        found: list[tuple[float, int, Schedule]] = []
        ways = (True, False) if self.search and self.foresee else (self.foresee,)
        for (order, rounds), foresee in product(enumerate(self._candidates(memory)), ways):
            try:
                planned = self._timed(rounds, device, foresee)
            except LimitError:
                if not found:
                    raise
                break
            if planned is not None:
                found.append((planned[0], order, planned[1]))
        return min(found, key=lambda one: one[:2])[2] if found else None

    def _timed(self, rounds: Rounds, device: Device, foresee: bool) -> tuple[float, Schedule] | None:
        """The makespan and plan in these rounds, or in equal ones; None if it cannot run.

        What fits at the larger batch fits at the smaller, with one exception: inputs are packed from address 0, so at
        the smaller batch one may lie where another had been and is gone.
        """
        for tried in filter(self._exists, (rounds, self._equal(rounds))[: len(rounds)]):
            try:
                schedule = self._plan(tried, device, foresee)
                if self._can_run(schedule):
                    return simulate(self.call.problem, schedule, device).makespan, schedule
            except (InfeasibleError, ScheduleError):
                continue
        return None

    def _equal(self, rounds: Rounds) -> Rounds:
        count, batch = count_rounds(rounds), sum(size * times for size, times in rounds)
        near = range(count, min(batch, count + 100_000))
        return balanced(batch, next((more for more in near if batch % more == 0), batch))

    def _candidates(self, memory: int) -> list[Rounds]:
        family = self.call.problem
        if not isinstance(family, GraphFamily):
            return [[(self.call.graph.batch, 1)]]
        batch, n = family.batch, count_rounds(rounds_of(family, memory))
        counts = [n, n + 1, n + 2, n + 3, 2 * n, 3 * n] if self.search else [n]
        found = [balanced(batch, count) for count in dict.fromkeys(counts) if count <= batch]
        return list(filter(self._exists, found))

    def _exists(self, rounds: Rounds) -> bool:
        family = self.call.problem
        known = family.batches if isinstance(family, GraphFamily) else None
        return known is None or all(size in known for size, _ in rounds)

    def _plan(self, rounds: Rounds, device: Device, foresee: bool) -> Schedule:
        """The plan at the larger batch: what fits there fits at the smaller."""
        family = self.call.problem
        graph = family.at(rounds[0][0]) if isinstance(family, GraphFamily) else self.call.graph
        linked = device if self.linked else Device(device.memory, 1.0)
        schedule, _ = _core.modnn(graph, linked, foresee, self.planner, self.progress, seconds_left(self.until))
        return schedule.with_rounds(rounds)

    def _can_run(self, schedule: Schedule) -> bool:
        moved = {step["offload"] for step in schedule.steps if "offload" in step}
        if not moved or self.free:
            return True
        graph = largest_graph(self.call.problem, schedule)
        taken = sum(tensor["size"] for tensor in graph.tensors if tensor["name"] in moved)
        return self.linked and taken <= (self.call.device.host_memory or 0)

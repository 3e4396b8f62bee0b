"""Shared by planners that recompute: from a sequence of runs and offloaded inputs to a Result."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from memsched import _core
from memsched._core import Chain, RematPlan, RematTable, Schedule, Unrolled
from memsched.errors import LimitError
from memsched.planners.call import seconds_left
from memsched.planners.sets import ChainCall
from memsched.problems.bounds import graph_bound, recompute_bound
from memsched.problems.problem import graph_of, peak_of, simulate
from memsched.support.memo import once_per_object
from memsched.support.types import Flags, Progress

TABLE_CELLS = 60_000_000  # floats of one table, 240 MB: the limit for everything that makes tables
MOST_LAYERS: int = _core.most_table_layers  # stages and the loss; neighbours of longer chains are planned as one
FIRST_LAYERS = 64  # layers of the first, quick plan if time is limited
LEAST_RUNS = 8  # runs per op that a plan may have however little time is left
FAR = 0.01  # from the bound on all plans: a search changes the runs, too
ROTOR_SLOTS = 500
SPARE = 16  # a table has one extra slot per this many, for plans of slightly more memory than there is


@once_per_object
def _least_memory(chain: Chain) -> tuple[int, int]:
    return _core.least_memory(chain)


def rotor_min_memory(chain: Chain) -> int:
    """Resident plus the least memory of recomputation without a link; at most the plain peak."""
    return min(chain.resident + _least_memory(chain)[0], peak_of(graph_of(chain)))


STEPS = 1e-5  # seconds a stage to write and simulate the steps of a plan


def pofo_min_memory(chain: Chain) -> int:
    """Resident plus the least memory of recomputation with a link; at most the plain peak."""
    return min(chain.resident + _least_memory(chain)[1], peak_of(graph_of(chain)))


def most_slots(chain: Chain) -> int:
    """The most slots that a table of the chain may have."""
    layers = min(chain.n + 1, MOST_LAYERS)
    return max(1, TABLE_CELLS // (layers * (layers + 1) // 2))


def make_table(
    chain: Chain,
    capacity: int,
    slots: int,
    *,
    threads: int,
    layers: int = MOST_LAYERS,
    time_limit: float | None = None,
    progress: Progress = None,
) -> RematTable:
    """A table of at most `layers` layers, incomplete if time ran out; LimitError if it would have over TABLE_CELLS."""
    if slots > most_slots(chain):
        raise LimitError(
            f"a table of {slots} slots for the {chain.n} stages of '{chain.name}' would hold more than {TABLE_CELLS} "
            f"numbers (240 MB); give slots <= {most_slots(chain) * SPARE // (SPARE + 1)}"
        )
    return RematTable(chain, capacity, slots, threads, layers, time_limit, progress)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """The source of a planner's tables."""

    threads: int
    progress: Progress
    until: float = math.inf  # the time.perf_counter() from which on no more tables are made
    shared: RematTable | None = None  # for all memories of a chain up to its own capacity; tried first

    @property
    def left(self) -> float | None:
        """Seconds left, or None without a limit."""
        return seconds_left(self.until)

    def layers(self, call: ChainCall) -> tuple[int, ...]:
        """The numbers of layers to plan with, in order: with limited time, a long chain gets a quick plan first."""
        quick = self.until < math.inf and call.chain.n > 2 * FIRST_LAYERS and self.shared is None
        return (FIRST_LAYERS, MOST_LAYERS) if quick else (MOST_LAYERS,)

    def of(self, call: ChainCall, slots: int, layers: int) -> Iterator[RematTable]:
        """The shared table, then one of `slots` slots, then four times as many, in case rounding up leaves no plan."""
        if self.shared is not None:
            yield self.shared
            slots = min(slots, most_slots(call.chain) * SPARE // (SPARE + 1))
        for count in (slots, 4 * slots):
            width = max(1, call.capacity // count)
            spare = count // SPARE
            if self.left == 0:
                return
            if count == slots or count + spare <= most_slots(call.chain):
                table = make_table(
                    call.chain,
                    call.capacity + spare * width,
                    count + spare,
                    threads=self.threads,
                    layers=layers,
                    time_limit=self.left,
                    progress=self.progress,
                )
                if not table.complete:
                    return
                yield table


def spare_slots(table: RematTable) -> int:
    """How many extra slots a plan may use, to see whether it fits nevertheless; 0 if nothing is rounded."""
    return table.slots // SPARE if table.width > 1 else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class UnrolledRuns:
    """A sequence of runs of a chain, unrolled: one op per run, one tensor per stay of a value on the device."""

    call: ChainCall
    unrolled: Unrolled
    travels: Flags  # one flag per tensor of the unrolled graph
    until: float  # the time.perf_counter() at which making its schedule is given up

    def makespan(self) -> float:
        """Simulated, with all transfers as early as the rules allow; infinite if the plan does not run."""
        graph, device = self.unrolled.graph, self.call.device
        return float(_core.offload_set_makespans(graph, device, device.memory, self.travels[np.newaxis])[0])

    def schedule(self, planner: dict[str, Any]) -> Schedule:
        """The schedule on the chain's graph."""
        graph, call = self.unrolled.graph, self.call
        made = _core.offload_set_schedule(graph, call.device.memory, self.travels, planner, call.chunk)
        return self.unrolled.rolled(call.graph, made, seconds_left(self.until))

    def searched(
        self,
        planner: dict[str, Any],
        time_limit: float,
        moves: int | None,
        seed: int,
        progress: Progress,
        *,
        anneal: bool,
    ) -> tuple[Schedule, int]:
        """The schedule after a search for better transfers with the same runs, and how many moves were tried.

        It ends after some seconds since the start of the call or, if given, after some moves. With `anneal`, the list
        of runs is then changed, too, if the plan is more than FAR above the bound.
        """
        call, device, graph = self.call, self.call.device, self.unrolled.graph
        over, rows = call.started + time_limit, self.travels[np.newaxis]
        bound = graph_bound(graph, device)
        left = max(0.0, over - time.perf_counter()) / (2 if anneal else 1) if moves is None else None
        made, evaluations = _core.offload_search(
            graph, device, device.memory, rows, bound, 0.0, seed, moves, left, planner, call.chunk, progress
        )
        schedule = self.unrolled.rolled(call.graph, made, seconds_left(self.until))
        if not anneal:
            return schedule, evaluations
        bound = recompute_bound(call.graph, device)
        if simulate(call.graph, schedule, device).makespan <= (1 + FAR) * bound:
            return schedule, evaluations
        most, left = (2**62, max(0.0, over - time.perf_counter())) if moves is None else (moves, None)
        schedule, more = _core.annealed(call.graph, device, schedule, most, seed, left, planner, call.chunk, progress)
        return schedule, evaluations + more


def unroll(call: ChainCall, plan: RematPlan | None, until: float = math.inf) -> UnrolledRuns:
    """The runs of a plan, with its offloads of first values; without a plan, each op once and no offloads.

    LimitError: time.perf_counter() has reached `until`, and the plan runs its ops again and again.
    """
    ops = np.arange(2 * call.chain.n + 1) if plan is None else plan.ops
    until = until if len(ops) > LEAST_RUNS * (2 * call.chain.n + 1) else math.inf
    skips = np.zeros(len(ops), np.uint8) if plan is None else plan.skips
    unrolled = Unrolled(call.graph, ops, skips, seconds_left(until))
    tensors = np.asarray(unrolled.tensors)  # of the chain's graph
    travels = np.zeros(len(tensors), np.uint8)
    if plan is not None:
        first = np.full(len(call.stage), -1, np.int64)  # instance of each tensor
        first[tensors[::-1]] = np.arange(len(tensors))[::-1]
        offloaded, with_tape = np.zeros((2, call.chain.n + 2), np.bool_)  # the last entry is for stage -1
        offloaded[plan.offloaded] = True
        with_tape[plan.offloaded[plan.saved != 0]] = True
        own = np.where(call.tape, with_tape[call.stage], offloaded[call.stage])
        travels[first[own & (first >= 0)]] = 1
    return UnrolledRuns(call=call, unrolled=unrolled, travels=travels, until=until)


def rotor_plan(call: ChainCall, table: RematTable) -> RematPlan | None:
    """The plan without a link for the most slots that still fits: rounding up leaves room for extra slots."""
    known = _plans_of_slots(table)
    slots = call.capacity // table.width
    for count in range(slots + spare_slots(table), slots - 1, -1):
        if count not in known:
            known[count] = _plan_of_slots(call, table, count, known.get(count + 1, NO_PLAN))
        plan, needed = known[count]
        if plan is not None and (count == slots or needed <= call.device.memory):
            return plan
    return None


def best_rotor_plan(call: ChainCall, slots: int, tables: Tables) -> tuple[RematPlan, int | None]:
    """rotor's plan from the first table that has one, and its slots; else the plan that just fits, and None."""
    best: tuple[RematPlan, int] | None = None
    for layers in tables.layers(call):
        for table in tables.of(call, slots, layers):
            found = rotor_plan(call, table)
            if found is not None:
                if best is None or found.time <= best[0].time:
                    best = found, call.capacity // table.width
                break
    return best or (_core.least_memory_plan(call.chain, call.capacity, False), None)


NO_PLAN: tuple[RematPlan | None, int] = (None, 0)


@once_per_object
def _plans_of_slots(table: RematTable) -> dict[int, tuple[RematPlan | None, int]]:
    """The plans found in a table so far, by slots, each with the bytes it really needs, resident included."""
    return {}


def _plan_of_slots(
    call: ChainCall, table: RematTable, slots: int, above: tuple[RematPlan | None, int]
) -> tuple[RematPlan | None, int]:
    """A plan and its need; usually it equals `above`, the plan for one more slot."""
    plan = table.rotor(slots * table.width)
    if plan is None:
        return NO_PLAN
    if above[0] is not None and np.array_equal(plan.ops, above[0].ops) and np.array_equal(plan.skips, above[0].skips):
        return plan, above[1]
    return plan, _core.peak_of_runs(call.graph, plan.ops, plan.skips)

"""The paper's interruptible link model (Euro-Par 2020, Problem 2) of a chain and a device, exact or in slots."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import numpy as np

from memsched import _core
from memsched._core import Chain, Device
from memsched.problems.discretize import bump, ceil_partial_sums, ceil_slots, floor_partial_sums
from memsched.support.memo import once_per_object
from memsched.support.types import Flags, Progress

MAX_STATES = 40_000_000
FALLBACK_STATES = 1_000_000  # limit of the search on real sizes after a failed discretisation


@dataclass(frozen=True, slots=True, kw_only=True)
class FluidInstance:
    """A chain in the paper's model: x_0 = activation[0] and x_k = saved[k-1] are offloaded whole; M less resident.

    `bandwidth` is that of one link for both directions; for two different bandwidths, their harmonic mean.
    """

    chain: Chain
    capacity: int
    bandwidth: float
    alike: bool  # whether both directions have this bandwidth

    @property
    def activation(self) -> list[float]:
        """x_0 .. x_{L+1} in bytes."""
        return [float(self.chain.activation[0]), *self.chain.saved.tolist()]

    @property
    def peak(self) -> int:
        """M_peak less resident: the paper's peak with everything kept."""
        held = np.cumsum([int(self.chain.activation[0]), *self.chain.saved.tolist()])[1:]
        gradients = self.chain.gradient[:-1] + self.chain.gradient[1:]
        return int(
            max(np.max(held + self.chain.forward_overhead), np.max(held + gradients + self.chain.backward_overhead))
        )

    @property
    def feasible(self) -> bool:
        """Whether any offload set fits; without a link, whether everything does."""
        return self.capacity >= (self.peak if self.bandwidth == 0 else self.exact().min_capacity)

    @property
    def bounds_plans(self) -> bool:
        """Whether its optimum bounds plans on the device: it has such a link, or nothing has to travel."""
        return self.alike or self.capacity >= self.peak

    def exact(self) -> _core.FluidChain:
        """The instance in bytes and link bytes."""
        chain, speed = self.chain, self.bandwidth if math.isfinite(self.bandwidth) else 0.0
        sizes = (self.activation, chain.gradient, chain.forward_overhead, chain.backward_overhead)
        x, y, over, back = (np.array(size, np.float64) for size in sizes)
        return _core.FluidChain(
            chain.forward_time * speed, chain.backward_time * speed, x, y, over, back, self.capacity
        )

    def in_slots(self, width: float, slots: int, activation: list[float]) -> _core.FluidChain:
        """The instance in slots of `width` bytes, with the given rounded activations."""
        chain = self.chain
        moved = [(time * self.bandwidth).tolist() for time in (chain.forward_time, chain.backward_time)]
        sizes = [size.tolist() for size in (chain.gradient, chain.forward_overhead, chain.backward_overhead)]
        # Arrays: Ctrl-C while the extension converts a list would become a TypeError.
        forward, backward = (np.array(floor_partial_sums(column, width)) for column in moved)
        y, over, back = (np.array(ceil_slots(column, width)) for column in sizes)
        return _core.FluidChain(forward, backward, np.array(activation), y, over, back, slots)


@dataclass(frozen=True, slots=True, kw_only=True)
class FluidSolution:
    """An offload set and its value in the interruptible model."""

    offloaded: Flags  # flag k: x_k is offloaded
    makespan: float  # seconds on the real sizes
    lower_bound: float  # on every set; 0 if a discretised solution proves none
    optimal: bool  # proven for the instance as solved (in slots, if slots were used)
    states: int = 0  # of the dynamic program, generated
    rounds: int = 0  # of the discretisation
    slots: int = 0  # 0: exact


@once_per_object
def compute_time(chain: Chain) -> float:
    """Seconds of all stages, forward and backward."""
    return float(chain.forward_time.sum() + chain.backward_time.sum())


def fluid_chain(chain: Chain, device: Device) -> FluidInstance:
    """The paper's instance of a chain on a device."""
    speeds = (device.d2h, device.h2d)
    bandwidth = min(speeds)
    alike = bandwidth in (0, max(speeds))  # if one is 0, nothing can travel
    if not alike:
        bandwidth = 2.0 / sum(1.0 / speed for speed in speeds)
    if not compute_time(chain) * bandwidth < 1e300:
        bandwidth = math.inf  # the link moves more bytes in that time than a double can hold: treat it as free
    return FluidInstance(chain=chain, capacity=device.memory - chain.resident, bandwidth=bandwidth, alike=alike)


def prefix_set(instance: FluidInstance, excess: int) -> Flags:
    """x_0, x_1, .. until `excess` bytes are offloaded (GREEDY)."""
    sizes = np.array(instance.activation[:-1])
    before = np.concatenate([[0.0], np.cumsum(sizes)[:-1]])
    return ((before < excess) & (excess > 0)).astype(np.uint8)


def fluid_solve(
    instance: FluidInstance,
    *,
    gap: float = 0.0,
    hash_tables: bool = False,
    max_states: int = MAX_STATES,
    time_limit: float | None = None,
    progress: Progress = None,
) -> FluidSolution:
    """Solve a feasible instance on its real sizes."""
    compute = compute_time(instance.chain)
    if instance.bandwidth == 0 or math.isinf(instance.bandwidth) or instance.capacity >= instance.peak:
        chosen = prefix_set(instance, instance.peak - instance.capacity)
        return FluidSolution(offloaded=chosen, makespan=compute, lower_bound=compute, optimal=True)
    solution = _core.dynprog(instance.exact(), hash_tables, gap, max_states, time_limit, progress)
    return FluidSolution(
        offloaded=np.array(solution.offloaded),
        makespan=solution.makespan / instance.bandwidth,
        lower_bound=solution.lower_bound / instance.bandwidth,
        optimal=solution.optimal,
        states=solution.states,
    )


def fluid_solve_in_slots(
    instance: FluidInstance,
    slots: int,
    *,
    max_rounds: int,
    gap: float = 0.0,
    max_states: int = MAX_STATES,
    time_limit: float | None = None,
    progress: Progress = None,
) -> FluidSolution:
    """Solve a feasible instance in slots by the paper's algorithm: the reference for what the core does itself.

    It is solved repeatedly with finer activations until the set fits the real sizes.

    Gradients and overheads are rounded up, so close to the minimum there may be no solution in slots. Then, and after
    `max_rounds` rounds, the real sizes are used, with at most `FALLBACK_STATES` states. LimitError: the hash tables
    exceed `max_states`.
    """
    if instance.bandwidth == 0 or math.isinf(instance.bandwidth) or instance.capacity >= instance.peak:
        return fluid_solve(instance)
    exact = instance.exact()
    width = instance.capacity / slots
    activation = ceil_partial_sums(instance.activation, width)
    deadline = math.inf if time_limit is None else time.perf_counter() + time_limit

    def left() -> float | None:
        return None if time_limit is None else max(0.0, deadline - time.perf_counter())

    states, rounds = 0, 0
    while rounds < max_rounds and (rounds == 0 or time.perf_counter() < deadline):
        rounded = instance.in_slots(width, slots, activation)
        if rounded.min_capacity > slots:
            break
        rounds += 1
        solution = _core.dynprog(rounded, True, gap, max_states, left(), progress)
        states += solution.states
        makespan = exact.makespan(solution.offloaded)
        if math.isfinite(makespan):
            return FluidSolution(
                offloaded=np.array(solution.offloaded),
                makespan=makespan / instance.bandwidth,
                lower_bound=0.0,
                optimal=solution.optimal,
                states=states,
                rounds=rounds,
                slots=slots,
            )
        if not bump(activation, instance.activation, width):
            break
    fallback = fluid_solve(
        instance, gap=gap, max_states=min(max_states, FALLBACK_STATES), time_limit=left(), progress=progress
    )
    return replace(fallback, states=fallback.states + states, rounds=rounds)

"""The paper's interruptible link model (Euro-Par 2020, Problem 2) of a chain and a device, exact or in slots."""

from __future__ import annotations

from dataclasses import dataclass

from memsched._core import Chain, ChainPlanner, Device, FluidChain, FluidSizes, FluidSolution, fluid_bandwidth

MAX_STATES = 40_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FluidInstance:
    """A chain in the paper's model: x_0 = activation[0] and x_k = saved[k-1] are offloaded whole; M less resident.

    `bandwidth` is that of one link for both directions; for two different bandwidths, their harmonic mean.
    """

    sizes: FluidSizes
    capacity: int
    bandwidth: float

    @property
    def feasible(self) -> bool:
        """Whether any offload set fits; without a link, whether everything does."""
        return self.capacity >= (self.sizes.peak if self.bandwidth == 0 else self.sizes.least)

    def exact(self) -> FluidChain:
        """The instance in bytes and link bytes."""
        return self.sizes.exact(self.capacity, self.bandwidth)

    def in_slots(self, slots: int) -> FluidChain:
        """The instance in slots, as the first round of the discretisation has it."""
        return self.sizes.in_slots(self.capacity, self.bandwidth, slots)

    def solve(self, *, gap: float = 0.0, time_limit: float | None = None) -> FluidSolution:
        """Solve a feasible instance on its real sizes."""
        return self.sizes.solve(self.capacity, self.bandwidth, dynprog_planner(None, gap=gap), time_limit)


def fluid_chain(chain: Chain, device: Device) -> FluidInstance:
    """The paper's instance of a chain on a device."""
    compute = float(chain.forward_time.sum() + chain.backward_time.sum())
    return FluidInstance(
        sizes=FluidSizes(chain, compute),
        capacity=device.memory - chain.resident,
        bandwidth=fluid_bandwidth(device.d2h, device.h2d, compute),
    )


def dynprog_planner(
    slots: int | None = 500,
    *,
    hash_tables: bool = False,
    break_ties: bool = False,
    gap: float = 0.0,
    max_rounds: int = 50,
    max_states: int = MAX_STATES,
) -> ChainPlanner:
    """DYNPROG as a planner of the core: by dominance and bounds, or by hash tables alone."""
    return ChainPlanner.dynprog(slots, max_rounds, gap, max_states, hash_tables, break_ties)

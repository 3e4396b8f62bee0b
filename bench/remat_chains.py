"""What the benchmarks of recomputation share: chains of any length, their budgets and links, and timing in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

import memsched as ms

MIB = 1 << 20


# --- chains, budgets and links


def chain_of(kind: str, stages: int) -> ms.Chain:
    """`random`: times and sizes over two orders of magnitude; otherwise a profile with each stage run several times."""
    if kind.startswith("random"):
        return ms.profiles.random(stages, int(kind[6:] or 1), scale=64 * MIB)
    return stretched(kind, stages)


@lru_cache(maxsize=8)
def stretched(profile: str, stages: int) -> ms.Chain:
    """A profile's stages, each repeated until there are as many as asked for: a deeper network of the same kind."""
    short = ms.profiles.load(profile)
    own = np.arange(stages) * short.n // stages
    ends = np.concatenate([[0], own + 1])
    return ms.Chain(
        short.forward_time[own],
        short.backward_time[own],
        short.activation[ends],
        short.gradient[ends],
        saved=short.saved[own],
        forward_overhead=short.forward_overhead[own],
        transient_overhead=short.transient_overhead[own],
        backward_overhead=short.backward_overhead[own],
        name=f"{profile}-{stages}",
    )


def ideal(chain: ms.Chain) -> float:
    """Seconds without any limit of memory."""
    return float(chain.forward_time.sum() + chain.backward_time.sum())


def capacity_of(chain: ms.Chain, percent: float) -> int:
    """Bytes: that share of the plain run's peak, resident left out of both."""
    return int(percent / 100 * (ms.peak_memory(chain) - chain.resident))


def slow_link(chain: ms.Chain) -> float:
    """The bandwidth at which sending everything takes four times as long as the forward phase."""
    return float((chain.activation[0] + chain.saved.sum()) / (4 * chain.forward_time.sum()))


def device_of(chain: ms.Chain, percent: float) -> ms.Device:
    """A share of the peak, and the slow link."""
    return ms.Device(chain.resident + capacity_of(chain, percent), slow_link(chain))


def without_transient(chain: ms.Chain) -> ms.Chain:
    """The same chain, had forwards that do not save no more scratch than those that do."""
    return ms.Chain(
        chain.forward_time,
        chain.backward_time,
        chain.activation,
        chain.gradient,
        saved=chain.saved,
        forward_overhead=chain.forward_overhead,
        transient_overhead=chain.forward_overhead,
        backward_overhead=chain.backward_overhead,
        resident=chain.resident,
        name=chain.name,
    )


# --- timing


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Best of several rounds, each number by itself, in seconds.

    `busiest` is the CPU time of whichever of two threads had more of it: the wall time when nobody else is there.
    """

    wall: float
    cpu: float
    busiest: float
    value: Any

    def better(self, other: Timed) -> Timed:
        """The least of both, each number by itself."""
        return Timed(
            wall=min(self.wall, other.wall),
            cpu=min(self.cpu, other.cpu),
            busiest=min(self.busiest, other.busiest),
            value=self.value,
        )


def in_turn(work: Sequence[Callable[[], Any]], rounds: int) -> list[Timed]:
    """Each piece of work once a round."""
    seconds = np.full((len(work), 3), np.inf)
    values: list[Any] = [None] * len(work)
    for _ in range(rounds):
        for index, run in enumerate(work):
            before = time.perf_counter(), time.process_time(), time.thread_time()
            values[index] = run()
            wall, cpu, own = (
                after - start
                for after, start in zip(
                    (time.perf_counter(), time.process_time(), time.thread_time()), before, strict=True
                )
            )
            seconds[index] = np.minimum(seconds[index], (wall, cpu, max(own, cpu - own)))
    return [
        Timed(wall=float(wall), cpu=float(cpu), busiest=float(busiest), value=value)
        for (wall, cpu, busiest), value in zip(seconds, values, strict=True)
    ]

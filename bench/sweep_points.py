"""A thousand points of one chain: `memsched.sweep` without a store against a loop of single calls, in turns.

    python -m bench.sweep_points     # about a minute; `python -m bench.sweep` puts the same figures onto its page

DenseNet-201, 50 memories x 20 bandwidths. All ways run in turns in one process, which may use two cores. Every row must
have the makespan of its single call. "core" is the compiled work of the points alone, on one thread: plans, simulations
and bounds. The single calls do it, too, so that no way on one thread can have a greater ratio.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import memsched as ms
from memsched.planners.registry import PLANNERS as ENTRIES

PROFILE = "densenet201-224-b32"
ROUNDS = 15
SHARES = [2 * step for step in range(1, 51)]  # percent
BETA = [(4 + 1.4 * step) * 1e9 for step in range(20)]
PLANNERS = ("greedy", "dynprog")
JOBS = (1, 2)


def paired(planner: str, rounds: int) -> dict[str, float]:
    """Microseconds a point of the loop, and its ratio to each way, by the best of the rounds."""
    chain = ms.profiles.load(PROFILE)
    low, high = ms.min_memory(chain, planner), ms.peak_memory(chain)
    memory = [low + (high - low) * share // 100 for share in SHARES]
    plan = getattr(ms, planner)
    ways: list[Callable[[], list[float | None]]] = [
        lambda: [plan(chain, limit, speed).makespan for limit in memory for speed in BETA]
    ]
    for jobs in JOBS:
        ways.append(
            lambda jobs=jobs: [
                row["makespan"] for row in ms.sweep(chain, [planner], memory=memory, beta=BETA, jobs=jobs)
            ]
        )
    figures = ENTRIES[planner].figures
    assert figures is not None
    core = figures(chain)
    devices = [ms.Device(limit, speed) for limit in memory for speed in BETA]
    ways.append(lambda: [row and row[0] for row in core(devices)])
    seconds: list[list[float]] = [[] for _ in ways]
    expected = ways[0]()
    for _ in range(rounds):
        for taken, way in zip(seconds, ways, strict=True):
            began = time.perf_counter()
            found = way()
            taken.append(time.perf_counter() - began)
            if found != expected:
                raise SystemExit(f"{planner}: a sweep finds other makespans than the planner called one by one")
    loop, *others = (min(taken) for taken in seconds)
    names = [*(f"{jobs} threads" for jobs in JOBS), "core"]
    ratios = {name: loop / taken for name, taken in zip(names, others, strict=True)}
    return {"loop": loop / len(expected) * 1e6, **ratios}


def measure(rounds: int = ROUNDS) -> dict[str, dict[str, float]]:
    """Of each planner that plans many points at once."""
    return {planner: paired(planner, rounds) for planner in PLANNERS}


def main() -> None:
    """Print the ratios."""
    for planner, found in measure().items():
        more = ", ".join(f"{name} {ratio:.2f} x" for name, ratio in found.items() if name != "loop")
        print(f"{planner}: a single call {found['loop']:.0f} us; a sweep without a store, in points per second: {more}")


if __name__ == "__main__":
    main()

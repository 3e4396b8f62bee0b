"""Points per second of `memsched.sweep`: 10,500 points on one core and on two, against calling the planners one by one.

    python -m bench.sweep            # about ten minutes; writes docs/results/sweep.md and .json
    python -m bench.sweep --quick --out FOLDER    # one network, 5 memories

14 networks x 50 memories x 5 bandwidths x greedy, dynprog and rotor. All ways run in one run, in turn, each in its own
process that may use one core or two, and the whole round is repeated; the best of the rounds counts. The one-by-one way
is a loop of `ms.greedy(chain, M, beta)` and so on, in one process, without a store.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import sweep_points
from bench.common import RESULTS, Row, environment, environment_line, table

NETWORKS = (
    *("resnet18-224-b32", "resnet34-224-b32", "resnet50-224-b32", "resnet101-224-b32", "resnet152-224-b32"),
    *("densenet121-224-b32", "densenet161-224-b32", "densenet169-224-b32", "densenet201-224-b32"),
    *("inception_v3-299-b32", "vgg16-224-b32", "vgg19-224-b32", "gpt2-1024-b8", "resnet101-1000-b8"),
)
PLANNERS = ("greedy", "dynprog", "rotor")
MEMORY = [f"{2 * step}%" for step in range(1, 51)]
BETA = [4e9, 8e9, 12e9, 16e9, 32e9]
# Way -> cores, and what the child does.
WAYS: dict[str, tuple[int, str]] = {
    "one by one": (1, "loop"),
    "sweep, 1 thread": (1, "own"),
    "sweep, 2 threads": (2, "own"),
    "sweep, 2 processes": (2, "processes"),
    "sweep, shared tables, 1 thread": (1, "shared"),
    "sweep, shared tables, 2 threads": (2, "shared"),
    "sweep, shared tables, 2 processes": (2, "shared processes"),
}
ALL = "all three"
SETS: dict[str, tuple[str, ...]] = {**{name: (name,) for name in PLANNERS}, ALL: PLANNERS}  # each is one sweep
SHARE = ("rotor", ALL)  # in which some planner answers all memories from one table

CHILD = """
import json, sys, tempfile, time
import memsched as ms
from memsched.problems.budget import parse_memory

way, networks, planners, memory, beta, jobs = json.loads(sys.argv[1])
chains = [ms.profiles.load(name) for name in networks]
store = tempfile.mkdtemp() + "/sweep.sqlite"
began = time.perf_counter()
if way == "loop":
    found = []
    for chain in chains:
        for planner in planners:
            plan = getattr(ms, planner)
            for limit in [parse_memory(one, chain) for one in memory]:
                for speed in beta:
                    try:
                        found.append(plan(chain, limit, speed).makespan)
                    except ms.InfeasibleError:
                        found.append(None)
else:
    table = ms.sweep(networks, planners, memory=memory, beta=beta, jobs=jobs, store=store,
                     shared_tables="shared" in way, executor="processes" if "processes" in way else "threads")
    found = [row["makespan"] for row in table]
print(json.dumps({"seconds": time.perf_counter() - began, "points": len(found), "found": found}))
"""


def measure(way: str, networks: Sequence[str], memory: Sequence[str], planners: Sequence[str]) -> Row:
    """Seconds and makespans of one way, in a process of its own on as many cores as it may use."""
    cores, kind = WAYS[way]
    allowed = sorted(os.sched_getaffinity(0))[:cores]
    arguments = json.dumps([kind, networks, planners, memory, BETA, cores])
    done = subprocess.run(
        [sys.executable, "-c", CHILD, arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        preexec_fn=lambda: os.sched_setaffinity(0, allowed),
    )
    found: Row = json.loads(done.stdout)
    return found


def ways_of(name: str) -> list[str]:
    """All, without those that share tables where no planner of the set does."""
    return [way for way in WAYS if "shared" not in way or name in SHARE]


def run(networks: Sequence[str], memory: Sequence[str], rounds: int) -> dict[str, dict[str, Row]]:
    """Set of planners -> way -> the best round; the makespans of own tables must be those of the loop."""
    best: dict[str, dict[str, Row]] = {name: {} for name in SETS}
    for number in range(rounds):
        for planner, planners in SETS.items():
            for way in ways_of(planner):
                found = measure(way, networks, memory, planners)
                print(
                    f"{number + 1}/{rounds} {planner}, {way}: {found['points'] / found['seconds']:.0f} points/s",
                    flush=True,
                )
                if way not in best[planner] or found["seconds"] < best[planner][way]["seconds"]:
                    best[planner][way] = found
    for planner, ways in best.items():
        for way, found in ways.items():
            if "shared" not in way and found["found"] != ways["one by one"]["found"]:
                raise SystemExit(f"{planner}: {way} finds other makespans than the planner called one by one")
    return best


def better_and_worse(shared: list[float | None], own: list[float | None]) -> Row:
    """How the plans of a shared table compare with those of a table per point."""
    both = [(a, b) for a, b in zip(shared, own, strict=True) if a is not None and b is not None]
    ratios = [a / b for a, b in both]
    return {
        "points": len(own),
        "no plan, shared": sum(one is None for one in shared),
        "no plan, own": sum(one is None for one in own),
        "faster": sum(ratio < 1 - 1e-9 for ratio in ratios),
        "slower": sum(ratio > 1 + 1e-9 for ratio in ratios),
        "worst": max(ratios),
        "best": min(ratios),
        "mean": sum(ratios) / len(ratios),
    }


def report(
    best: dict[str, dict[str, Row]], networks: Sequence[str], memory: Sequence[str], rounds: int
) -> tuple[str, Row]:
    """The page, and its figures."""
    rates = {
        planner: {way: found["points"] / found["seconds"] for way, found in ways.items()}
        for planner, ways in best.items()
    }
    quality = better_and_worse(
        best["rotor"]["sweep, shared tables, 1 thread"]["found"], best["rotor"]["one by one"]["found"]
    )
    figures = {
        "environment": environment(),
        "networks": networks,
        "memory": memory,
        "rates": rates,
        "shared against own": quality,
        "points": {"profile": sweep_points.PROFILE, "found": sweep_points.measure(rounds)},
    }
    return page(figures, best[ALL]["one by one"]["points"]), figures


def page(figures: Row, total: int) -> str:
    """Markdown."""
    rates, quality = figures["rates"], figures["shared against own"]

    def cell(planner: str, way: str) -> str:
        rate = rates[planner].get(way)
        return "" if rate is None else f"{rate:,.0f} ({rate / rates[planner]['one by one']:.2f})"

    columns = tuple(SETS)
    scaling = {name: rates[name]["sweep, 2 threads"] / rates[name]["sweep, 1 thread"] for name in columns}
    once = rates[ALL]["one by one"]
    both, default = (rates[ALL][way] / once for way in ("sweep, 2 threads", "sweep, shared tables, 2 threads"))
    shared = rates["rotor"]["sweep, shared tables, 1 thread"] / rates["rotor"]["one by one"]
    points = [points_row(name, found) for name, found in figures["points"]["found"].items()]
    goals = [
        [
            "two threads, all three planners, as a sweep is by default: 1.8 x",
            f"{default:.2f} x",
            verdict(default >= 1.8),
        ],
        ["the same with a table per memory: 1.8 x", f"{both:.2f} x", verdict(both >= 1.8)],
        ["where tables are shared, on one thread: 5 x", f"{shared:.2f} x", verdict(shared >= 5)],
    ]
    return f"""# Sweeps

Written by `python -m bench.sweep`: {total:,} points, {len(figures["networks"])} networks x
{len(figures["memory"])} memories (2 % to 100 %) x {len(BETA)} bandwidths (4 to 32 GB/s) x greedy, dynprog and rotor.
The benchmark checks that every way with a table per memory finds the same makespans as the planners called one by one.

{environment_line(figures["environment"])}

## Points per second

In brackets: the ratio to one Python process that calls the planners one by one, on one core and without a store. The
sweeps keep every point in a store. The last column is one sweep of all three planners. Best of the rounds; all ways
took turns in one run. rotor does not use the link, so a sweep plans once per memory and simulates the plan for the
five bandwidths. All of its ratios include this gain.

{table(["way", *columns], [[way, *(cell(name, way) for name in columns)] for way in WAYS])}

Two threads over one: {", ".join(f"{name} {ratio:.2f} x" for name, ratio in scaling.items())}. Planners
release the GIL while they plan, so threads scale where plans take long. A plan of greedy takes less time than writing
its row to the store, which threads do one after the other.

## A thousand points of one chain, without a store

greedy and dynprog plan many points in one call of the core. On {figures["points"]["profile"]}, with 50 memories x 20
bandwidths, a sweep is compared with a loop of single calls in the same process. The two take turns; best of the rounds
(`python -m bench.sweep_points`).

{table(["planner", "a single call", "1 thread", "2 threads", "the core alone, 1 thread"], points)}

A sweep plans, simulates and bounds each point as a single call does, and saves the work around it. The last column is
what a sweep would gain if nothing but that work in the core were left: the most that any sweep on one thread can reach.

## Goals

Against the planners called one by one.

{table(["goal", "measured", "verdict"], goals)}

## What sharing a table costs

A shared table has up to 2000 slots over the peak of the plain run, a point's own table 500 over its memory. Of rotor's
{quality["points"]:,} points, the shared table gives a faster plan on {quality["faster"]:,} and a slower one on
{quality["slower"]:,}: makespans are {quality["mean"]:.5f} times those of own tables on average,
{quality["best"]:.4f} to {quality["worst"]:.4f}. {quality["no plan, shared"]:,} points have no plan with shared tables,
{quality["no plan, own"]:,} with their own.

Time grows with the number of points, plus one table per chain: slots n^3 at worst for n stages.
"""


def points_row(planner: str, found: dict[str, float]) -> list[str]:
    """Of one planner."""
    ways = (*(f"{jobs} threads" for jobs in sweep_points.JOBS), "core")
    return [planner, f"{found['loop']:.0f} us", *(f"{found[way]:.2f} x" for way in ways)]


def verdict(met: bool) -> str:
    """As in the other pages."""
    return "met" if met else "**not met**"


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="one network, five memories, one round")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of sweep.md and sweep.json")
    given = parser.parse_args()
    networks, memory = (NETWORKS[:1], MEMORY[9::10]) if given.quick else (NETWORKS, MEMORY)
    rounds = 1 if given.quick else given.rounds
    text, figures = report(run(networks, memory, rounds), networks, memory, sweep_points.ROUNDS if rounds > 1 else 1)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "sweep.md").write_text(text, encoding="utf-8")
    (given.out / "sweep.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

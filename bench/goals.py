"""Measure the goals of speed and quality and write docs/results/goals.md and goals.json.

python -m bench.goals                  # all of it, about an hour; resumes from build/bench/goals.jsonl
python -m bench.goals --quick --out /tmp/goals
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from bench.common import RESULTS, ROOT, Cache, Row, bandwidth, best_of, budget, environment, timed
from bench.goals_report import report
from bench.whole_tensors import whole_tensor_bound

import memsched as ms
from memsched import _core
from memsched.planners.chain.greedy import GREEDY
from memsched.planners.sets import begin_chain
from memsched.problems.bounds import graph_bound
from memsched.problems.discretize import ceil_partial_sums
from memsched.problems.fluid import fluid_chain, fluid_solve

SLOTS = 500
MAX_HASH_STATES = 60_000_000
MIB = 1 << 20
PARTS = ("slots", "exact", "offload", "whole", "simulate", "growth")

Work = Iterator[tuple[str, Callable[[], Row]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What to measure.

    Attributes
    ----------
    profiles, limits : names and percent of memory, for slots, exact and offload
    time_limit, exact_limit : seconds for offload and for the exact dynamic program
    short : profiles of at most 24 tensors that may travel, for the bound on plans of whole tensors
    stages, seeds : of the random chains
    """

    profiles: tuple[str, ...]
    limits: tuple[float, ...]
    time_limit: float
    exact_limit: float
    short: tuple[str, ...]
    stages: tuple[int, ...]
    seeds: tuple[int, ...]


# --- dynprog(slots=500): pruned against the paper's hash tables


def slots_row(profile: str, percent: float) -> Row:
    """CPU seconds of both methods on one discretised instance, best of repeats in turn; long hash tables run once."""
    chain = ms.profiles.load(profile)
    device = ms.Device(budget(chain, percent, "dynprog"), bandwidth(chain))
    instance = fluid_chain(chain, device)
    width = instance.capacity / SLOTS
    rounded = instance.in_slots(width, SLOTS, ceil_partial_sums(instance.activation, width))
    row: Row = {"profile": profile, "percent": percent, "stages": chain.n}
    if rounded.min_capacity > SLOTS:
        return row | {"status": "no solution in slots"}
    try:
        once, hashed = timed(lambda: _core.dynprog(rounded, hash=True, max_states=MAX_HASH_STATES))
    except ms.LimitError:
        return row | {"status": "hash table too large"}
    pruned = _core.dynprog(rounded)
    work = [partial(_core.dynprog, rounded), partial(_core.dynprog, rounded, hash=True)]
    seconds = [*best_of(work[:1]), once] if once > 0.5 else best_of(work)
    return row | {
        "status": "measured",
        "pruned_seconds": seconds[0],
        "hash_seconds": seconds[1],
        "ratio": seconds[1] / seconds[0],
        "pruned_states": pruned.states,
        "hash_states": hashed.states,
        "same_value": bool(np.isclose(pruned.makespan, hashed.makespan, rtol=1e-12)),
        "proven": pruned.optimal,
    }


# --- dynprog(slots=None): proofs in the paper's own model


def exact_row(profile: str, percent: float, seconds: float) -> Row:
    """How close the proof comes in 0.5 s, and whether and when it is complete."""
    chain = ms.profiles.load(profile)
    device = ms.Device(budget(chain, percent, "dynprog"), bandwidth(chain))
    instance = fluid_chain(chain, device)
    began = time.perf_counter()
    near = fluid_solve(instance, gap=0.003, time_limit=0.5)
    near_seconds = time.perf_counter() - began
    began = time.perf_counter()
    exact = fluid_solve(instance, time_limit=seconds)
    exact_seconds = time.perf_counter() - began
    on_graph = graph_bound(ms.to_graph(chain), device)
    return {
        "profile": profile,
        "percent": percent,
        "gap": near.makespan / near.lower_bound - 1,
        "seconds": near_seconds,
        "exact": exact.optimal,
        "exact_seconds": exact_seconds,
        "exact_gap": exact.makespan / exact.lower_bound - 1,
        "states": exact.states,
        "model_bound": near.lower_bound,
        "graph_bound": on_graph,
        "gap_to_graph_bound": near.makespan / on_graph - 1,
    }


# --- offload after a second


def offload_row(profile: str, percent: float, chunk: int | None, seconds: float) -> Row:
    """The certified gap."""
    chain = ms.profiles.load(profile)
    began = time.process_time()
    result = ms.offload(chain, budget(chain, percent), bandwidth(chain), chunk=chunk, time_limit=seconds)
    used = time.process_time() - began
    return {
        "profile": profile,
        "percent": percent,
        "chunk": chunk,
        "time_limit": seconds,
        "gap": result.gap,
        "seconds": result.runtime,
        "cpu_seconds": used,
        "optimal": result.optimal,
        "evaluations": result.params["evaluations"],
    }


# --- what no plan of whole tensors can reach


def whole_row(profile: str, percent: float, seconds: float) -> Row:
    """How far above the bound every plan of whole tensors is, and how far offload's is."""
    chain = ms.profiles.load(profile)
    device = ms.Device(budget(chain, percent), bandwidth(chain))
    graph = ms.to_graph(chain)
    found = ms.offload(chain, device=device, time_limit=seconds)
    proven = min(whole_tensor_bound(graph, device, found.makespan), found.makespan)
    return {
        "profile": profile,
        "percent": percent,
        "tensors": len(_core.movable_tensors(graph)),
        "proven_gap": proven / found.lower_bound - 1,
        "offload_gap": found.gap,
    }


# --- the simulator


def simulate_row(profile: str, percent: float, chunk: int | None) -> Row:
    """Steps per second of a simulation with its timeline, and of the search's inner loop, which only times sets.

    The sets are GREEDY's and, as the worst case of the search, that of all tensors.
    """
    chain = ms.profiles.load(profile)
    device = ms.Device(budget(chain, percent), bandwidth(chain))
    graph = ms.to_graph(chain, chunk)
    schedule = ms.greedy(chain, device=device, chunk=chunk).schedule
    task = begin_chain(ms.greedy, chain, None, None, device, chunk, least=False)
    everything = np.zeros(len(task.stage), np.uint8)
    everything[_core.movable_tensors(graph)] = 1
    sets = [np.array([flags] * 5) for flags in (task.plans.choose(GREEDY, task.device)[0], everything)]
    steps = [len(_core.offload_set_schedule(graph, device.memory, rows[0], {}, chunk)) for rows in sets]
    seconds = best_of(
        [
            partial(_core.simulate_graph, graph, schedule, device),
            *(partial(_core.offload_set_makespans, graph, device, device.memory, rows) for rows in sets),
        ],
        seconds=1.0,
        least=5,
    )
    return {
        "profile": profile,
        "percent": percent,
        "chunk": chunk,
        "steps": len(schedule),
        "steps_per_second": len(schedule) / seconds[0],
        "set_steps_per_second": 5 * steps[0] / seconds[1],
        "everything_steps": steps[1],
        "everything_steps_per_second": 5 * steps[1] / seconds[2],
    }


# --- cost growth on random chains


def growth_row(stages: int, seed: int, seconds: float) -> Row:
    """CPU seconds of each part on one random chain, at 40 % and with the link as busy as the compute stream."""
    chain = ms.profiles.random(stages, seed)
    compute = float(chain.forward_time.sum() + chain.backward_time.sum())
    percent = 40.0
    budget_ = budget(chain, percent, "dynprog")
    device = ms.Device(budget_, 2 * (ms.peak_memory(chain) - budget_) / compute)
    result = ms.greedy(chain, device=device)
    graph = ms.to_graph(chain)
    exact_seconds, exact = timed(lambda: fluid_solve(fluid_chain(chain, device), time_limit=10.0))
    offload_seconds, found = timed(lambda: ms.offload(chain, device=device, time_limit=seconds))
    in_slots, simulated, validated = (
        best_of([work], least=3)[0]
        for work in (
            partial(ms.dynprog, chain, device=device, slots=SLOTS, time_limit=10.0),
            partial(_core.simulate_graph, graph, result.schedule, device),
            partial(ms.validate, result),
        )
    )
    return {
        "stages": stages,
        "seed": seed,
        "dynprog(slots=500)": in_slots,
        "dynprog(slots=None)": exact_seconds,
        "exact": exact.optimal,
        "exact_gap": exact.makespan / exact.lower_bound - 1,
        "offload, one evaluation": offload_seconds / max(1, found.params["evaluations"]),
        "simulate": simulated,
        "validate": validated,
    }


def work_of(part: str, settings: Settings) -> Work:
    """Keys of the cache and what computes their rows."""
    if part == "slots":
        for profile in settings.profiles:
            for percent in (10.0, 40.0, 70.0, 90.0):
                yield f"slots {profile} {percent}", partial(slots_row, profile, percent)
    elif part == "exact":
        limit = settings.exact_limit
        for profile in settings.profiles:
            for percent in settings.limits:
                yield f"exact {profile} {percent} {limit}", partial(exact_row, profile, percent, limit)
    elif part == "offload":
        limit = settings.time_limit
        for profile in settings.profiles:
            for percent in settings.limits:
                for chunk in (16 * MIB, None):
                    key = f"offload {profile} {percent} {chunk} {limit}"
                    yield key, partial(offload_row, profile, percent, chunk, limit)
    elif part == "whole":
        for profile in settings.short:
            for percent in (0.0, 10.0, 20.0):
                key = f"whole {profile} {percent} {settings.time_limit}"
                yield key, partial(whole_row, profile, percent, settings.time_limit)
    elif part == "simulate":
        for profile, chunk in (("resnet152-1000-b8", MIB), ("resnet101-224-b32", None)):
            yield f"simulate {profile} {chunk}", partial(simulate_row, profile, 40.0, chunk)
    else:
        for stages in settings.stages:
            for seed in settings.seeds:
                key = f"growth {stages} {seed} {settings.time_limit}"
                yield key, partial(growth_row, stages, seed, settings.time_limit)


def call(entry: tuple[str, Callable[[], Row]]) -> tuple[str, Row]:
    """One row, for a pool."""
    key, compute = entry
    return key, compute()


def compact(document: Row) -> str:
    """The document as JSON, each part as its columns and one line per row, six digits per number."""
    parts = []
    for part, rows in document["parts"].items():
        columns = list(dict.fromkeys(column for row in rows for column in row))
        lines = [
            json.dumps([float(f"{row[c]:.6g}") if isinstance(row.get(c), float) else row.get(c) for c in columns])
            for row in rows
        ]
        body = ",\n".join(lines)
        parts.append(f'"{part}": {{"columns": {json.dumps(columns)}, "rows": [\n{body}\n]}}')
    joined = ",\n".join(parts)
    return f'{{"environment": {json.dumps(document["environment"])},\n"parts": {{\n{joined}\n}}}}\n'


def main() -> None:
    """Measure, then write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--profiles", nargs="+", default=list(ms.profiles.names()))
    parser.add_argument("--limits", nargs="+", type=float, default=[10.0 * k for k in range(10)], help="percent")
    parser.add_argument("--time-limit", type=float, default=1.0, help="seconds for offload")
    parser.add_argument("--exact-limit", type=float, default=10.0, help="seconds for the exact dynamic program")
    parser.add_argument("--jobs", type=int, default=1, help="processes for the parts exact and offload")
    parser.add_argument("--quick", action="store_true", help="two profiles, two limits, small budgets")
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "bench" / "goals.jsonl")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of goals.md and goals.json")
    given = parser.parse_args()
    settings = Settings(
        profiles=tuple(given.profiles),
        limits=tuple(given.limits),
        time_limit=given.time_limit,
        exact_limit=given.exact_limit,
        short=tuple(name for name in given.profiles if name.startswith("resnet18-")),
        stages=(25, 50, 100, 200, 400, 800),
        seeds=(1, 2, 3),
    )
    cache = Cache(given.cache)
    if given.quick:
        settings = Settings(
            profiles=("resnet18-224-b32", "inception_v3-299-b32"),
            limits=(30.0, 70.0),
            time_limit=0.1,
            exact_limit=0.5,
            short=(),
            stages=(25, 50),
            seeds=(1,),
        )
        cache = Cache(None)
    rows = {}
    for part in given.parts:
        work = list(work_of(part, settings))
        if given.jobs > 1 and part in ("exact", "offload"):
            with multiprocessing.Pool(given.jobs) as pool:
                for key, row in pool.imap_unordered(call, [entry for entry in work if entry[0] not in cache.rows]):
                    cache.add(key, row)
        rows[part] = cache.through(work, part)
    document = {"environment": environment(), "parts": rows}
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "goals.json").write_text(compact(document), encoding="utf-8")
    (given.out / "goals.md").write_text(report(document), encoding="utf-8")
    print(f"wrote {given.out / 'goals.md'} and goals.json")


if __name__ == "__main__":
    main()

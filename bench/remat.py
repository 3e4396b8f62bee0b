"""Measure the goals of recomputation and of its union with offloading; write docs/results/remat.md and remat.json.

python -m bench.remat                  # all of it, about half an hour; resumes from build/bench/remat.jsonl
python -m bench.remat --quick --out /tmp/remat
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from bench.common import RESULTS, ROOT, Cache, Row, bandwidth, environment
from bench.goals import Work, compact
from bench.remat_chains import MIB, capacity_of, chain_of, device_of, ideal, in_turn, without_transient
from bench.remat_report import report
from bench.rotor_published import published_value

import memsched as ms
from memsched import _core

PIECES = 16 * MIB
BEAM = 100  # of the growth, the same for all lengths
LONG = 10.0  # seconds from which on a search is run once
PARTS = ("rotor", "loaded", "memory", "exact", "real", "threads", "growth", "auto")
STUDY = {  # profile: (budgets in bytes without resident, rotor's and POFO's percent above the ideal time)
    "resnet101-224-b32": (
        (1151440332, 1810016614, 2468592896, 3127169177),
        (25.3, 14.5, 8.0, 4.5),
        (14.7, 10.2, 5.7, 0.9),
    ),
    "densenet121-224-b32": (
        (1025073894, 1739326643, 2453579392, 3167832140),
        (29.5, 21.3, 15.0, 8.7),
        (25.3, 19.1, 12.2, 6.1),
    ),
    "inception_v3-500-b32": (
        (3185453619, 4558501529, 5931549440, 7304597350),
        (20.1, 11.4, 7.2, 3.4),
        (11.5, 8.4, 6.4, 1.6),
    ),
    "gpt2-1024-b8": (
        (4367857068, 6106843398, 7845829728, 9584816057),
        (21.9, 14.8, 11.0, 6.3),
        (10.2, 6.3, 1.3, 0.0),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What to measure.

    Attributes
    ----------
    kinds : of chains: see `chain_of`
    table : (stages, slots) for the parts rotor and memory
    exact : stages of the exact searches; the last one's are also those of the part real
    real_slots : for the part real
    threads : stages of the part threads, for each of its methods
    lengths, slots : of the growth, each by method
    limits, search_limits : percent of the peak, for rotor and for the searches
    seeds : of the random chains of the growth
    rounds : of each timing
    profiles, budgets : of the study, and how many of its budgets
    """

    kinds: tuple[str, ...]
    table: tuple[int, int]
    exact: tuple[int, ...]
    real_slots: int
    threads: dict[str, tuple[int, ...]]
    limits: tuple[float, ...]
    search_limits: tuple[float, ...]
    lengths: dict[str, tuple[int, ...]]
    slots: dict[str, tuple[int, ...]]
    seeds: tuple[int, ...]
    rounds: int
    profiles: tuple[str, ...]
    budgets: int


# --- rotor: the table, against the published solver in C


def our_rotor(chain: ms.Chain, capacity: int, slots: int, threads: int) -> float | None:
    """Table and plan; the plan's time."""
    found = _core.RematTable(chain, capacity, slots, threads).rotor(capacity)
    return None if found is None else found.time


def rotor_row(kind: str, stages: int, slots: int, percent: float, rounds: int) -> Row:
    """Both solvers in turn."""
    chain = chain_of(kind, stages)
    capacity = capacity_of(chain, percent)
    ours = [partial(our_rotor, chain, capacity, slots, threads) for threads in (1, 2)]
    published, one, two = in_turn([partial(published_value, chain, capacity, slots), *ours], 1)
    for _ in range(1, rounds):
        (again,) = in_turn([partial(published_value, chain, capacity, slots)], 1)
        published = published.better(again)
        for _ in range(3):  # wall time of two threads needs a moment in which both cores are free
            again_one, again_two = in_turn(ours, 1)
            one, two = one.better(again_one), two.better(again_two)
    return {
        "chain": kind,
        "stages": stages,
        "slots": slots,
        "percent": percent,
        "published_cpu": published.cpu,
        "published_wall": published.wall,
        "one_cpu": one.cpu,
        "two_wall": two.wall,
        "two_busiest": two.busiest,
        "one_ratio": published.cpu / one.cpu,
        "two_ratio": published.wall / two.wall,
        "two_busiest_ratio": published.cpu / two.busiest,
        "published_overhead": published.value / ideal(chain) - 1 if np.isfinite(published.value) else None,
        "overhead": None if one.value is None else one.value / ideal(chain) - 1,
    }


def loaded_row(kind: str, stages: int, slots: int, percent: float, turn: int) -> Row:
    """Both solvers once in turn, beside whatever else runs: how many processes wanted a core in the last minute."""
    row = rotor_row(kind, stages, slots, percent, 1)
    return {**row, "turn": turn, "load": os.getloadavg()[0], "cores": os.cpu_count()}


def most_held() -> int:
    """Bytes that this process has held at most; getrusage would count the parent's too."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def grown(kind: str, stages: int, slots: int, percent: float, solver: str) -> int:
    """Bytes by which the most that this process has held grows."""
    chain = chain_of(kind, stages)
    capacity = capacity_of(chain, percent)
    if solver == "published":
        published_value(chain, capacity, 1)  # loads the library
    before = most_held()
    if solver == "published":
        published_value(chain, capacity, slots)
    else:
        our_rotor(chain, capacity, slots, 2)
    return most_held() - before


def memory_row(kind: str, stages: int, slots: int, percent: float) -> Row:
    """Both solvers, each in a process of its own."""
    row: Row = {"chain": kind, "stages": stages, "slots": slots, "percent": percent}
    for solver in ("ours", "published"):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            row[solver] = pool.apply(grown, (kind, stages, slots, percent, solver))
    return row


# --- POFO: the exact search, and the one with real sizes and a beam


def table_and_pofo(
    chain: ms.Chain, device: ms.Device, slots: int, exact: bool, beam: int, threads: int
) -> _core.RematPlan | None:
    """Table and plan."""
    capacity = device.memory - chain.resident
    return _core.RematTable(chain, capacity, slots, threads).pofo(capacity, device, exact, beam)


def exact_row(kind: str, stages: int, slots: int, percent: float, rounds: int) -> Row:
    """The exact search on one thread and on two, in turn; once where it is long."""
    chain = chain_of(kind, stages)
    device = device_of(chain, percent)
    work = [partial(table_and_pofo, chain, device, slots, True, BEAM, threads) for threads in (1, 2)]
    one, two = in_turn(work, 1)
    for _ in range(1, rounds if one.cpu < LONG else 1):
        again_one, again_two = in_turn(work, 1)
        one, two = one.better(again_one), two.better(again_two)
    return {
        "chain": kind,
        "stages": stages,
        "slots": slots,
        "percent": percent,
        "one_cpu": one.cpu,
        "two_wall": two.wall,
        "two_busiest": two.busiest,
        "states": None if one.value is None else one.value.states,
        "overhead": None if one.value is None else one.value.time / ideal(chain) - 1,
    }


def real_row(kind: str, stages: int, slots: int, percent: float, chunk: int | None) -> Row:
    """Real sizes and a beam against exact labels of 50 slots, both as `pofo` simulates them."""
    chain = chain_of(kind, stages)
    device = device_of(chain, percent)
    real, exact = in_turn(
        [
            partial(ms.pofo, chain, device=device, chunk=chunk, threads=1, labels="real", slots=slots),
            partial(ms.pofo, chain, device=device, chunk=chunk, threads=1, labels="exact", slots=50),
        ],
        1,
    )
    row: Row = {"chain": kind, "stages": stages, "slots": slots, "percent": percent, "chunk": chunk}
    for name, timed in (("real", real), ("exact", exact)):
        row[f"{name}_cpu"] = timed.cpu
        row[f"{name}_value"] = None if timed.value.estimate is None else timed.value.estimate / ideal(chain) - 1
        row[f"{name}_overhead"] = timed.value.makespan / ideal(chain) - 1
        row[f"{name}_slots"] = timed.value.params["slots_used"]
    return row


# --- two threads find what one finds


def plan_fields(plan: _core.RematPlan | None) -> Any:
    """All that a plan is."""
    if plan is None:
        return None
    return plan.time, plan.ops.tolist(), plan.skips.tolist(), plan.offloaded.tolist(), plan.saved.tolist(), plan.states


def threads_row(method: str, kind: str, stages: int, percent: float) -> Row:
    """Plans of one thread, of two and of five, bit by bit; for rotor at 20 budgets of one table."""
    chain = chain_of(kind, stages)
    device = device_of(chain, percent)
    capacity = device.memory - chain.resident
    found = []
    for threads in (1, 2, 5):
        if method == "rotor":
            table = _core.RematTable(chain, capacity, 500, threads)
            found.append([plan_fields(table.rotor(capacity * part // 20)) for part in range(1, 21)])
        else:
            exact = method == "pofo, exact"
            plan = table_and_pofo(chain, device, 50 if exact else 400, exact, BEAM, threads)
            found.append(plan_fields(plan))
    return {
        "method": method,
        "chain": kind,
        "stages": stages,
        "percent": percent,
        "plan": found[0] is not None,
        "same": found[0] == found[1] == found[2],
    }


# --- growth


def growth_row(method: str, varied: str, seed: int, stages: int, slots: int, percent: float) -> Row:
    """CPU seconds of one thread on a random chain; the searches' without their table."""
    chain = chain_of(f"random{seed}", stages)
    device = device_of(chain, percent)
    capacity = device.memory - chain.resident
    if method == "table":
        (timed,) = in_turn([partial(our_rotor, chain, capacity, slots, 1)], 3)
    else:
        table = _core.RematTable(chain, capacity, slots, 1)
        search = partial(table.pofo, capacity, device, method == "exact", BEAM)
        (timed,) = in_turn([search], 2)
    return {
        "method": method,
        "varied": varied,
        "seed": seed,
        "stages": stages,
        "slots": slots,
        "percent": percent,
        "plan": timed.value is not None,
        "seconds": timed.cpu,
    }


# --- plan(planner="auto") on the profiles of an earlier study


def auto_row(profile: str, index: int) -> Row:
    """What `plan` returns, beside the values of the study."""
    chain = ms.profiles.load(profile)
    budgets, rotor, pofo = STUDY[profile]
    device = ms.Device(chain.resident + budgets[index], bandwidth(chain))
    light = without_transient(chain)
    row: Row = {
        "profile": profile,
        "percent": (10, 30, 50, 70)[index],
        "memory": device.memory,
        "study_rotor": rotor[index],
        "study_pofo": pofo[index],
    }
    for name, given in (("", chain), ("light_", light)):
        (auto,) = in_turn([partial(ms.plan, given, device=device, planner="auto", chunk=PIECES)], 1)
        only = ms.rotor(given, device=device)
        row[f"{name}auto"] = 100 * (auto.value.makespan / ideal(chain) - 1)
        row[f"{name}planner"] = auto.value.planner
        row[f"{name}rotor"] = 100 * (only.makespan / ideal(chain) - 1)
        row[f"{name}cpu"] = auto.cpu
    whole = ms.plan(chain, device=device, planner="auto")
    row["whole"] = 100 * (whole.makespan / ideal(chain) - 1)
    row["bound"] = 100 * (ms.bounds(chain, device=device, recompute=True, time_limit=0.0).recompute / ideal(chain) - 1)
    return row


def work_of(part: str, settings: Settings) -> Work:
    """Keys of the cache and what computes their rows."""
    points: list[tuple[Callable[..., Row], tuple[Any, ...]]] = []
    stages, slots = settings.table
    if part == "rotor":
        for kind in settings.kinds:
            points += [(rotor_row, (kind, stages, slots, percent, settings.rounds)) for percent in settings.limits]
    elif part == "loaded":
        middle = settings.limits[len(settings.limits) // 2]
        points += [(loaded_row, (settings.kinds[-1], stages, slots, middle, turn)) for turn in range(settings.rounds)]
    elif part == "memory":
        points += [(memory_row, (kind, stages, slots, settings.limits[-1])) for kind in settings.kinds]
    elif part == "exact":
        for count in settings.exact:
            for kind in settings.kinds:
                points += [
                    (exact_row, (kind, count, 50, percent, settings.rounds)) for percent in settings.search_limits
                ]
    elif part == "real":
        for kind in settings.kinds:
            for percent in settings.search_limits:
                points += [
                    (real_row, (kind, settings.exact[-1], settings.real_slots, percent, chunk))
                    for chunk in (PIECES, None)
                ]
    elif part == "threads":
        for method, lengths in settings.threads.items():
            for count in lengths:
                for kind in settings.kinds:
                    points += [(threads_row, (method, kind, count, percent)) for percent in settings.search_limits[-2:]]
    elif part == "growth":
        percent = settings.search_limits[len(settings.search_limits) // 2]
        for method in settings.lengths:
            lengths, numbers = settings.lengths[method], settings.slots[method]
            for seed in settings.seeds:
                points += [(growth_row, (method, "stages", seed, count, numbers[-1], percent)) for count in lengths]
                middle = lengths[len(lengths) // 2]
                points += [(growth_row, (method, "slots", seed, middle, number, percent)) for number in numbers]
    else:
        points += [(auto_row, (profile, index)) for profile in settings.profiles for index in range(settings.budgets)]
    for make, arguments in points:
        yield f"{part} {' '.join(map(str, arguments))}", partial(make, *arguments)


FULL = Settings(
    kinds=("random", "resnet152-224-b32"),
    table=(340, 500),
    exact=(100, 200),
    real_slots=400,
    limits=(10.0, 30.0, 60.0),
    search_limits=(10.0, 25.0, 50.0),
    threads={"rotor": (100, 340), "pofo, exact": (30, 100), "pofo, real": (50, 200)},
    lengths={"table": (50, 100, 200, 400), "exact": (25, 50, 100, 200), "real": (50, 100, 200, 400)},
    slots={"table": (125, 250, 500, 1000), "exact": (20, 30, 40, 50), "real": (100, 200, 400)},
    seeds=(1, 2, 3),
    rounds=3,
    profiles=tuple(STUDY),
    budgets=4,
)
QUICK = Settings(
    kinds=("random", "resnet152-224-b32"),
    table=(40, 60),
    exact=(12, 16),
    real_slots=60,
    limits=(60.0,),
    search_limits=(60.0,),
    threads={"rotor": (20,), "pofo, exact": (12,), "pofo, real": (12,)},
    lengths={"table": (20, 40), "exact": (8, 12), "real": (8, 12)},
    slots={"table": (30, 60), "exact": (10, 20), "real": (30, 60)},
    seeds=(1,),
    rounds=1,
    profiles=("gpt2-1024-b8",),
    budgets=1,
)


def main() -> None:
    """Measure, then write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--quick", action="store_true", help="short chains, few slots, one profile, no cache")
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "bench" / "remat.jsonl")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of remat.md and remat.json")
    given = parser.parse_args()
    settings, cache = (QUICK, Cache(None)) if given.quick else (FULL, Cache(given.cache))
    rows = {part: cache.through(work_of(part, settings), part) for part in given.parts}
    document = {"environment": environment(), "parts": rows}
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "remat.json").write_text(compact(document), encoding="utf-8")
    (given.out / "remat.md").write_text(report(document), encoding="utf-8")
    print(f"wrote {given.out / 'remat.md'} and remat.json")


if __name__ == "__main__":
    main()

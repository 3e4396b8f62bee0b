"""The claims of Beaumont, Eyraud-Dubois, Shilova, NeurIPS 2021, on the shipped profiles.

python -m bench.papers.pofo2021                 # about fifteen minutes; resumes from build/bench/pofo2021.jsonl
python -m bench.papers.pofo2021 --quick --out /tmp/pofo2021
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from bench.common import Cache, Row, bandwidth, budget
from bench.papers.europar2020 import BOUND, STYLES, figure
from bench.papers.page import Parts, arguments, publish
from bench.papers.pofo2021_claims import OVERHEAD, report
from bench.remat_chains import chain_of, ideal, slow_link

import memsched as ms

PIECES = 16 << 20
PROFILES = (  # one per network, and a second one for four families
    "resnet18-500-b32",
    "resnet34-500-b32",
    "resnet50-500-b32",
    "resnet50-1000-b8",
    "resnet101-500-b32",
    "resnet101-224-b32",
    "resnet152-500-b32",
    "densenet121-500-b32",
    "densenet121-224-b32",
    "densenet161-500-b32",
    "densenet169-500-b32",
    "densenet201-500-b32",
    "inception_v3-500-b32",
    "vgg16-224-b128",
    "vgg19-224-b128",
    "gpt2-1024-b8",
)
LIMITS = (0.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 100.0)
SLOTS_LIMITS = (10.0, 30.0, 50.0, 70.0)
LONG = tuple((kind, stages) for kind in ("random", "resnet152-224-b32") for stages in (50, 100, 200))
MOST_FINE = 60  # stages, for exact labels of 100 slots
HALVINGS = 8
LEAST: dict[str, Callable[..., ms.Result]] = {
    "rotor": ms.rotor,
    "pofo": partial(ms.pofo, chunk=PIECES),
    "exact": partial(ms.pofo, chunk=PIECES, labels="exact", slots=50),
}
LINES: dict[str, dict[str, Any]] = {
    "rotor": STYLES["greedy"],
    "pofo": STYLES["dynprog"],
    "pofo, whole": STYLES["autoswap"],
    "offload": STYLES["offload"],
}


@cache
def ends(profile: str) -> tuple[int, int]:
    """Rotor's least memory and the peak of the plain run, in bytes, resident included."""
    chain = ms.profiles.load(profile)
    return ms.min_memory(chain, "rotor"), ms.peak_memory(chain)


def device_at(profile: str, percent: float) -> ms.Device:
    """The profile's link, and memory in percent of the way between both ends."""
    low, high = ends(profile)
    return ms.Device(int(low + percent / 100 * (high - low)), bandwidth(ms.profiles.load(profile)))


def share_of(chain: ms.Chain, memory: int) -> float:
    """Of the plain run's peak, resident left out of both."""
    return (memory - chain.resident) / (ms.peak_memory(chain) - chain.resident)


def makespan(plan: Callable[..., ms.Result], chain: ms.Chain, device: ms.Device, **options: Any) -> float | None:
    """Simulated seconds; None where the planner has no plan."""
    try:
        return plan(chain, device=device, **options).makespan
    except ms.InfeasibleError:
        return None


def point(profile: str, percent: float, time_limit: float) -> Row:
    """All lines of the pictures at one limit of memory, in seconds."""
    chain = ms.profiles.load(profile)
    device = device_at(profile, percent)
    return {
        "profile": profile,
        "percent": percent,
        "memory": device.memory,
        "share": share_of(chain, device.memory),
        "ideal": ideal(chain),
        "bound": ms.bounds(chain, device=device, recompute=True, time_limit=0.0).recompute,
        "rotor": makespan(ms.rotor, chain, device),
        "pofo": makespan(ms.pofo, chain, device, chunk=PIECES),
        "pofo, whole": makespan(ms.pofo, chain, device),
        "offload": makespan(ms.offload, chain, device, chunk=PIECES, time_limit=time_limit),
    }


def least_memory(profile: str, planner: str) -> Row:
    """The least memory at which the overhead stays below what the paper allows, by halving the range."""
    chain = ms.profiles.load(profile)
    plan = LEAST[planner]
    least, high = ms.min_memory(chain, "rotor" if planner == "rotor" else "pofo"), ms.peak_memory(chain)

    def allowed(memory: int) -> bool:
        found = makespan(plan, chain, ms.Device(memory, bandwidth(chain)))
        return found is not None and found <= (1 + OVERHEAD) * ideal(chain)

    if allowed(least):
        high = least
    low = least
    for _ in range(HALVINGS):
        middle = (low + high) // 2
        if low < middle:
            low, high = (low, middle) if allowed(middle) else (middle, high)
    return {
        "profile": profile,
        "planner": planner,
        "memory": high,
        "factor": 1 / share_of(chain, high),
        "most": 1 / share_of(chain, least),
    }


def slots_row(name: str, chain: ms.Chain, device: ms.Device, percent: float) -> Row:
    """Exact labels of 50 slots against finer plans, simulated in pieces: overheads."""
    row: Row = {"chain": name, "stages": chain.n, "percent": percent}
    plans: dict[str, dict[str, Any]] = {"coarse": {"labels": "exact", "slots": 50}, "real": {}}
    if chain.n <= MOST_FINE:
        plans["fine"] = {"labels": "exact", "slots": 100}
    for key, options in plans.items():
        found = ms.pofo(chain, device=device, chunk=PIECES, **options)
        row[key] = found.makespan / ideal(chain) - 1
        row[f"{key}_slots"] = found.params["slots_used"]
    return row


def profile_slots(profile: str, percent: float) -> Row:
    """On a shipped profile."""
    return slots_row(profile, ms.profiles.load(profile), device_at(profile, percent), percent)


def long_slots(kind: str, stages: int, percent: float) -> Row:
    """On a chain of any length, with a slow link."""
    chain = chain_of(kind, stages)
    device = ms.Device(budget(chain, percent, "pofo"), slow_link(chain))
    return slots_row(f"{kind}, {stages} stages", chain, device, percent)


def work_of(
    part: str,
    profiles: list[str],
    limits: tuple[float, ...],
    time_limit: float,
    long: tuple[tuple[str, int], ...],
) -> Iterator[tuple[str, Callable[[], Row]]]:
    """Keys of the cache and what computes their rows."""
    for profile in profiles:
        if part == "points":
            for percent in limits:
                yield f"points {profile} {percent} {time_limit}", partial(point, profile, percent, time_limit)
        elif part == "least":
            for planner in LEAST:
                yield f"least {profile} {planner}", partial(least_memory, profile, planner)
        else:
            for percent in SLOTS_LIMITS:
                yield f"slots {profile} {percent}", partial(profile_slots, profile, percent)
    if part == "slots":
        for kind, stages in long:
            for percent in SLOTS_LIMITS:
                yield f"slots {kind} {stages} {percent}", partial(long_slots, kind, stages, percent)


def panel(axes: Any, rows: list[Row]) -> None:
    """Percent of overhead against memory in percent of the peak."""
    shares = [100 * row["share"] for row in rows]
    heights = {
        name: [math.nan if row[name] is None else 100 * (row[name] / row["ideal"] - 1) for row in rows]
        for name in ("bound", *LINES)
    }
    for name, style in LINES.items():
        axes.plot(shares, heights[name], label=name, **style)
    axes.plot(shares, heights["bound"], label="lower bound", **BOUND)
    axes.axhline(0, color=BOUND["color"], linewidth=0.8, linestyle=(0, (4, 3)), label="ideal")
    inner = [k for k, row in enumerate(rows) if row["percent"] > 0]  # at its least memory rotor leaves the picture
    top = float(np.nanmax([*heights["pofo, whole"], *(heights["rotor"][k] for k in inner)]))
    axes.set_ylim(-0.04 * top - 0.2, 1.12 * top + 0.5)
    axes.set_xlim(0, 100)


def pictures(rows: list[Row], folder: Path) -> list[tuple[str, str]]:
    """One a network; (file, what it shows)."""
    folder.mkdir(parents=True, exist_ok=True)
    of_network: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        profiles = of_network.setdefault(row["profile"].rsplit("-", 2)[0], {})
        profiles.setdefault(row["profile"], []).append(row)
    drawn = []
    for network, profiles in of_network.items():
        title = f"Overhead against memory, {network}"
        figure(folder / f"{network}.png", title, list(profiles.items()), 2, "overhead (%)", panel)
        drawn.append((f"{network}.png", title))
    return drawn


def measure(given: argparse.Namespace) -> tuple[Parts, Row]:
    """All parts."""
    profiles, long, known = given.profiles, LONG, Cache(given.cache)
    limits: tuple[float, ...] = LIMITS
    if given.quick:
        profiles, limits = ["resnet18-224-b32", "vgg16-224-b32"], (10.0, 50.0, 90.0)
        long, known = (("random", 15),), Cache(None)
    found = {
        part: known.through(work_of(part, profiles, limits, given.time_limit, long), part)
        for part in ("points", "least", "slots")
    }
    return found, {"time_limit": given.time_limit}


def main() -> None:
    """Compute, draw, then write the claims."""
    parser = arguments("pofo2021", __doc__)
    parser.add_argument("--profiles", nargs="+", default=list(PROFILES))
    parser.add_argument("--time-limit", type=float, default=0.2, help="seconds for offload")
    publish("pofo2021", parser.parse_args(), measure, lambda parts, at: pictures(parts["points"], at), report)


if __name__ == "__main__":
    main()

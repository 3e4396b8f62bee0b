"""plan(planner="auto") on every profile at ten limits: feasible, valid, never worse than one planner; how close proven.

python -m bench.auto                   # docs/results/auto.md and auto.csv; resumes from build/bench/auto.jsonl
python -m bench.auto --quick --out /tmp/auto
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
from collections import Counter
from pathlib import Path

import numpy as np
from bench.common import RESULTS, ROOT, Cache, Row, bandwidth, budget, environment, environment_line, table

import memsched as ms
from memsched.planners.registry import planners_of

LIMITS = tuple(100 * k / 9 for k in range(10))  # percent, from the least memory of POFO to the peak
SEARCH = 0.1  # seconds for each planner that searches


def auto_row(profile: str, percent: float) -> Row:
    """One point; a plan that does not hold, or that one planner beats, is an error."""
    chain = ms.profiles.load(profile)
    device = ms.Device(budget(chain, percent, "pofo"), bandwidth(chain))
    best = ms.plan(chain, device=device, time_limit=SEARCH)
    assert ms.validate(best).peak_memory <= device.memory, (profile, percent)
    others = [name for name in planners_of(chain) if name != "pofo"]  # auto's POFO starts from the plain one
    for name, found in ms.compare(chain, device=device, planners=others, time_limit=SEARCH).items():
        if isinstance(found, ms.Result) and name != "offload":  # whose search is timed
            assert best.makespan <= found.makespan * (1 + 1e-9), (profile, percent, name)
    ideal = ms.bounds(chain, device=device, time_limit=0.0).compute
    return {
        "profile": profile,
        "percent": round(percent, 1),
        "memory": device.memory,
        "planner": best.planner,
        "offloads": bool(best.offloaded),
        "recomputes": bool(best.recomputed),
        "overhead": best.makespan / ideal - 1,
        "gap": best.gap,
    }


def report(rows: list[Row]) -> str:
    """What was found, by memory."""
    header = ["memory", "overhead, mean", "largest", "proven gap, mean", "largest", "recompute", "offload", "both"]
    cells = []
    for percent in sorted({row["percent"] for row in rows}):
        own = [row for row in rows if row["percent"] == percent]
        overhead, gap = ([row[name] for row in own] for name in ("overhead", "gap"))
        kinds = Counter((row["recomputes"], row["offloads"]) for row in own)
        cells.append(
            [
                f"{percent:.0f} %",
                *(f"{100 * value:.1f} %" for value in (np.mean(overhead), max(overhead), np.mean(gap), max(gap))),
                *(kinds[kind] for kind in ((True, False), (False, True), (True, True))),
            ]
        )
    winners = ", ".join(f"{name} {count}" for name, count in Counter(row["planner"] for row in rows).most_common())
    profiles = len({row["profile"] for row in rows})
    return (
        "\n\n".join(
            [
                "# The best plan of all, on every profile",
                "Written by `python -m bench.auto`; auto.csv beside it has every point. "
                + environment_line(environment()),
                f'`plan(planner="auto")` with whole tensors and {SEARCH} s for each search, on {profiles} profiles at '
                'ten memories from `min_memory(chain, "pofo")` to the plain peak. All plans were validated; none is '
                "slower than any planner's own. The overhead is over the sum of all run times; the proven gap is to a "
                "bound that holds for all plans, those that recompute included. The last three columns count profiles.",
                table(header, cells),
                f"Whose plan it is: {winners}.",
            ]
        )
        + "\n"
    )


def call(point: tuple[str, float]) -> tuple[str, Row]:
    """One row, for a pool."""
    return f"{point[0]} {point[1]}", auto_row(*point)


def main() -> None:
    """Plan all points, then write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one profile, no cache")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "bench" / "auto.jsonl")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of auto.md and auto.csv")
    given = parser.parse_args()
    names = ("resnet18-224-b32",) if given.quick else ms.profiles.names()
    cache = Cache(None if given.quick else given.cache)
    points = [(name, percent) for name in names for percent in LIMITS]
    with multiprocessing.Pool(given.jobs) as pool:
        for key, row in pool.imap_unordered(call, [p for p in points if f"{p[0]} {p[1]}" not in cache.rows]):
            cache.add(key, row)
    rows = [cache.rows[f"{name} {percent}"] for name, percent in points]
    given.out.mkdir(parents=True, exist_ok=True)
    with (given.out / "auto.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    (given.out / "auto.md").write_text(report(rows), encoding="utf-8")
    print(f"wrote {given.out / 'auto.md'} and auto.csv")


if __name__ == "__main__":
    main()

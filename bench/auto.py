"""plan(planner="auto") on every profile at ten limits: feasible, valid, never worse than one planner; how close proven.

python -m bench.auto                   # docs/results/auto.md and auto.csv; resumes from build/bench/auto.jsonl
python -m bench.auto --bounds          # where only the bounds have changed: the plans of auto.csv, in half a minute
python -m bench.auto --quick --out /tmp/auto
"""

from __future__ import annotations

import argparse
import csv
import itertools
import multiprocessing
from collections import Counter
from pathlib import Path

import numpy as np
from bench.common import RESULTS, ROOT, Cache, Row, bandwidth, budget, environment, environment_line, table

import memsched as ms
from memsched.planners.registry import planners_of
from memsched.problems.bounds import ROUNDING, recompute_bound
from memsched.validation.plan import bound_of_every_plan

LIMITS = tuple(100 * k / 9 for k in range(10))  # percent, from the least memory of POFO to the peak


TRIED = """\
* For the bound, a linear program over a dozen moments at once: what is on the device and on the host at each, what runs
  again and travels in between, together with the cut at each of them. On 22 profiles (every third) it proves 0.18
  points more on average at 11 %, and 0.22 at the least memory, nearly all of it on ResNet-101 and ResNet-152, where
  early in the forward more is written than the link takes away.
* For the bound, a linear program with 10,000 variables over all moments at once, the start and the end of each op
  (what is where, and what runs again and travels in between; a tensor larger than the room beside an op is not on the
  device). On resnet50-224-b128 it proves 18.1 % over the time of all ops at the least memory, where one cut proves
  11.7 % and the pauses 20.0 %, and 10.4 % at 11 %, where the cut proves 9.2 %. It takes 8 and 18 s. With whole runs
  instead of parts of them, it proves 21.5 % at the least memory after 100 s.
* For the bound, pauses counted from another op than the first one with a pause after it: none of 65 profiles gains at
  the least memory.
* For the plan, before there were exchanges in lists of runs, annealing of pofo's plan and several walks of selective:
  2.2 % on average and 6.2 % at worst at 11 %. Without exchanges, annealing leaves pofo's plan as it is on ResNets, and
  improves it by 0.04 to 0.1 points on DenseNets.
* For the plan, selective alone on five profiles, four seeds each, three times as many moves at 11 %: 4.3 % on
  average. Late acceptance over 256 or 1,000 moves instead of 64: 4.3 and 4.4 %. Walks that restart from another
  starting plan when they find nothing: 4.0 to 4.6 %, better on ResNet-50 and worse on ResNet-152.
* For the plan, exchanges in graphs of a thousand ops, at 48 points of the captured steps with a link: the same to a
  tenth of a point on most, from 1.1 points better to 0.6 worse on graphnet-40k-b1-bf16 at a share of 0.1.
* For the bound, whole tensors instead of parts of them, at one moment, by an integer program: 0.1 points or less at 10
  of 15 points of five profiles, 0.7 at most."""


def auto_rows(profile: str) -> list[Row]:
    """All points of a profile; a plan that does not hold, or that one planner beats, is an error."""
    chain = ms.profiles.load(profile)
    rows: list[Row] = []
    for percent in LIMITS:
        device = ms.Device(budget(chain, percent, "pofo"), bandwidth(chain))
        best = ms.plan(chain, device=device)
        assert ms.validate(best).peak_memory <= device.memory, (profile, percent)
        # offload's search is timed by default, and auto's POFO starts from the plain one
        others = [name for name in planners_of(chain) if name not in ("offload", "pofo")]
        for name, found in ms.compare(chain, device=device, planners=others).items():
            if isinstance(found, ms.Result):
                assert best.makespan <= found.makespan * (1 + 1e-9), (profile, percent, name)
        rows.append(
            {
                "profile": profile,
                "percent": round(percent, 1),
                "memory": device.memory,
                "planner": best.planner,
                "offloads": bool(best.offloaded),
                "recomputes": bool(best.recomputed),
                "overhead": best.makespan / ms.bounds(chain, device=device, time_limit=0.0).compute - 1,
                "gap": best.gap,
                "makespan": best.makespan,
            }
        )
    return rows


def bounded_anew(row: Row) -> Row:
    """A point of auto.csv with the bound of today, which the validator must be able to prove."""
    chain = ms.profiles.load(row["profile"])
    graph, device = ms.to_graph(chain), ms.Device(int(row["memory"]), bandwidth(chain))
    bound, makespan = recompute_bound(graph, device), float(row["makespan"])
    proven = bound_of_every_plan(graph.to_json(), device.to_json(), bound)
    assert bound <= proven * (1 + ROUNDING), (row["profile"], row["percent"])
    assert bound <= makespan * (1 + ROUNDING), (row["profile"], row["percent"])
    numbers = {name: float(row[name]) for name in ("percent", "overhead")}
    flags = {name: row[name] == "True" for name in ("offloads", "recomputes")}
    return {**row, **numbers, **flags, "makespan": makespan, "gap": max(0.0, makespan / bound - 1)}


def slower_with_more(rows: list[Row]) -> list[str]:
    """Steps from one memory of a profile to the next at which the plan gets slower."""
    return [
        f"{more['profile']} from {less['percent']} % to {more['percent']} % "
        f"({100 * (more['makespan'] / less['makespan'] - 1):.2f} %)"
        for less, more in itertools.pairwise(rows)
        if less["profile"] == more["profile"] and more["makespan"] > less["makespan"] * (1 + 1e-9)
    ]


def report(rows: list[Row], *, anew: bool) -> str:
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
    profiles, slower = len({row["profile"] for row in rows}), slower_with_more(rows)
    return (
        "\n\n".join(
            [
                "# The best plan of all, on every profile",
                "Written by `python -m bench.auto`; auto.csv beside it has every point. "
                + environment_line(environment())
                + (" The plans were made before that, and bounded anew (`--bounds`)." if anew else ""),
                f'What `plan(planner="auto")` finds on {profiles} profiles, with whole tensors and without a time '
                "limit, so that no figure depends on the machine. There are ten memories, evenly spaced from "
                '`min_memory(chain, "pofo")` to the peak of the plain run. All plans were validated. None is slower '
                "than the plan of any single planner except `offload`, whose own search is limited by time. Overhead "
                "is relative to the sum of all run times. The proven gap is relative to a bound on all plans, "
                "including those that recompute. The last three columns count the profiles whose plans do this.",
                table(header, cells),
                f"Planners of the best plans: {winners}. Of the {len(rows) - profiles} steps from one memory to the "
                f"next, the plan for more is slower at {len(slower)}{': ' if slower else ''}{'; '.join(slower)}.",
                "## What was tried",
                TRIED,
            ]
        )
        + "\n"
    )


def call(profile: str) -> tuple[str, list[Row]]:
    """The rows of a profile, for a pool."""
    return profile, auto_rows(profile)


def main() -> None:
    """Plan all points, then write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one profile, no cache")
    parser.add_argument("--bounds", action="store_true", help="the plans of auto.csv with new bounds")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "bench" / "auto.jsonl")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of auto.md and auto.csv")
    given = parser.parse_args()
    if given.bounds:
        with (RESULTS / "auto.csv").open(encoding="utf-8", newline="") as file:
            write(given.out, [bounded_anew(row) for row in csv.DictReader(file)], anew=True)
        return
    names = ("resnet18-224-b32",) if given.quick else ms.profiles.names()
    cache = Cache(None if given.quick else given.cache)
    with multiprocessing.Pool(given.jobs) as pool:
        for key, rows in pool.imap_unordered(call, [name for name in names if name not in cache.rows]):
            cache.add(key, {"points": rows})
    rows = [row for name in names for row in cache.rows[name]["points"]]
    write(given.out, rows, anew=False)


def write(out: Path, rows: list[Row], *, anew: bool) -> None:
    """The page, and the table beside it."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / "auto.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    (out / "auto.md").write_text(report(rows, anew=anew), encoding="utf-8")
    print(f"wrote {out / 'auto.md'} and auto.csv")


if __name__ == "__main__":
    main()

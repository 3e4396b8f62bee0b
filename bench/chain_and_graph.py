"""The same training step as a chain and as a graph: the best plan of the chain, and selective on the graph.

python -m bench.chain_and_graph    # docs/results/chain_and_graph.md and chain_and_graph.csv, ten minutes; resumes
python -m bench.chain_and_graph --quick --out /tmp/both
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import numpy as np
from bench.common import RESULTS, ROOT, Cache, Row, environment, environment_line, table
from bench.selective import GRAPHS

import memsched as ms

LINKS = (0.0, 12e9, 64e9)  # bytes per second each way; 0: none
SHARES = (0.1, 0.2, 0.3, 0.5)  # from the graph's least memory without recomputation to its peak
SECONDS = {"auto": 2.0, "rotor": 1.0, "pofo": 1.0, "offload": 1.0}  # for planners of the chain that take a limit
MOVES = 1000


def point(chain: ms.Chain, graph: ms.Graph, link: float, share: float) -> Row:
    """Seconds over the ideal time, in seconds, of every plan at one budget; infinite where there is no plan."""
    least, peak = ms.min_memory(graph), ms.peak_memory(graph)
    device = ms.Device(int(least + share * (peak - least)), link, duplex=True)
    ideal = {"chain": float(sum(chain.forward_time) + sum(chain.backward_time))}
    ideal["graph"] = ms.bounds(graph, device=device, time_limit=0.0).compute
    row: Row = {"graph": graph.name, "link": link, "share": share, "memory": device.memory}
    row |= {"chain_ideal": ideal["chain"], "graph_ideal": ideal["graph"], "stages": chain.n, "ops": len(graph.ops)}
    row["optimizer"] = optimizer_state(chain, graph)
    row["selective"] = extra(lambda: ms.selective(graph, device=device, moves=MOVES), ideal["graph"])
    left = ms.Device(max(1, device.memory - row["optimizer"]), link, duplex=True)
    for name, seconds in SECONDS.items():
        row[name] = extra(lambda: ms.plan(chain, device=left, planner=name, time_limit=seconds), ideal["chain"])  # noqa: B023
    return row


def optimizer_state(chain: ms.Chain, graph: ms.Graph) -> int:
    """Bytes that are resident in the graph, and that the chain does not count."""
    resident = (chain.provenance or {})["resident"]
    return max(0, graph.resident - resident["parameters"] - resident.get("buffers", 0))


def extra(plan: Callable[[], ms.Result], ideal: float) -> float:
    """Seconds that a plan takes more than the ideal time; infinite where there is none."""
    try:
        return plan().makespan - ideal
    except ms.InfeasibleError:
        return math.inf


def best_of_chain(row: Row) -> float:
    """The least of all planners of the chain."""
    return float(min(row[name] for name in SECONDS))


@cache
def chain_of(name: str) -> ms.Chain:
    """The training step as a chain."""
    from bench.profiles.steps import record_chain

    return record_chain(name)


def call(name: str, link: float, share: float) -> Row:
    """The point of a training step."""
    return point(chain_of(name), ms.profiles.load_graph(name), link, share)


def pair(row: Row | None) -> str:
    """Percent over the ideal time, of the graph and of the chain."""
    return " / ".join(overhead(row, name) for name in ("selective", "chain")) if row else "not run"


def overhead(row: Row, name: str) -> str:
    """Percent over the ideal time."""
    seconds = row["selective"] if name == "selective" else best_of_chain(row)
    ideal = row["graph_ideal" if name == "selective" else "chain_ideal"]
    return f"{100 * seconds / ideal:.1f}" if seconds < math.inf else "none"


def report(rows: list[Row]) -> str:
    """The page."""
    both = [row for row in rows if best_of_chain(row) < math.inf and row["selective"] < math.inf]
    more = [row for row in both if row["selective"] > best_of_chain(row) * (1 + 1e-9)]
    only = sum(row["selective"] < math.inf <= best_of_chain(row) for row in rows)
    lost = sum(best_of_chain(row) < math.inf <= row["selective"] for row in rows)
    mean = [np.mean([row["selective"] / row["graph_ideal"] for row in both])]
    mean.append(np.mean([best_of_chain(row) / row["chain_ideal"] for row in both]))
    limits = ", ".join(f"{name} {seconds:g} s" for name, seconds in SECONDS.items())
    intro = (
        "The training steps of [the shipped graphs](../profiles.md) in bfloat16, captured once more as chains by "
        "`memsched.torch.profile`: same model, batch, machine and kernels. Budgets are the graph's least memory "
        "without recomputation plus a share of the way to its peak; links are duplex. On the graph, `ms.selective` "
        f"with {MOVES} moves. On the chain, the fastest plan of {', '.join(SECONDS)} (limits: {limits}); makespans "
        "are simulated."
    )
    differ = (
        "The two do not count the same. The chain has neither the optimiser's ops nor its state: its budget is "
        "smaller by the state, and overheads are over each one's own ideal time, which is longer for the graph by the "
        "optimiser. The chain holds the gradients of all parameters from the start, the graph each from its "
        "computation on. So where the chain has no plan, part of the reason is what is counted; the rest is that a "
        "stage saves all that its backward needs, or nothing."
    )
    verdict = (
        f"Of {len(rows)} points both have a plan at {len(both)}; there the overhead is {100 * mean[0]:.1f} % on "
        f"average on the graph and {100 * mean[1]:.1f} % on the chain, and in seconds it is larger on the graph at "
        f"{len(more)}. Only the graph has a plan at {only} points, only the chain at {lost}. Wanted: never slower "
        f"than the chain, which is {'**not met**' if more or lost else 'met'} on these points."
    )
    header = ["graph", "ops / stages", "share", *(f"{link / 1e9:g} GB/s" if link else "no link" for link in LINKS)]
    cells = []
    for name in dict.fromkeys(row["graph"] for row in rows):
        for share in SHARES:
            own = {row["link"]: row for row in rows if (row["graph"], row["share"]) == (name, share)}
            sizes = {f"{row['ops']} / {row['stages']}" for row in own.values()}
            cells.append([name, *sizes, share, *(pair(own.get(link)) for link in LINKS)] if own else [])
    return (
        "\n\n".join(
            (
                "# The same step as a graph and as a chain",
                "Written by `python -m bench.chain_and_graph`; chain_and_graph.csv beside it has every point. "
                + environment_line(environment()),
                intro,
                differ,
                verdict,
                "## Overhead in percent of the ideal time: graph / chain",
                table(header, filter(None, cells)),
            )
        )
        + "\n"
    )


def main() -> None:
    """Plan all points, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one step, no cache")
    parser.add_argument("--only-report", action="store_true", help="of the points in the cache")
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "bench" / "chain_and_graph.jsonl")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of chain_and_graph.md and .csv")
    given = parser.parse_args()
    names = ("resnet50-224-b128-bf16",) if given.quick else GRAPHS
    known = Cache(None if given.quick else given.cache)
    work = {f"{name} {link:g} {share}": (name, link, share) for name in names for share in SHARES for link in LINKS}
    work = {key: of for key, of in work.items() if key in known.rows or not given.only_report}
    rows = known.through([(key, partial(call, *of)) for key, of in work.items()], "points")
    given.out.mkdir(parents=True, exist_ok=True)
    with (given.out / "chain_and_graph.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    (given.out / "chain_and_graph.md").write_text(report(rows), encoding="utf-8")
    print(f"wrote {given.out / 'chain_and_graph.md'} and .csv")


if __name__ == "__main__":
    main()

"""selective, plan, bounds and validate on graphs of 10,000 and 50,000 ops: time, memory, gap, limits and Ctrl-C.

python -m bench.scale                  # docs/results/scale.md and scale.csv, about six minutes; resumes
python -m bench.scale --quick --out /tmp/scale
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import csv
import itertools
import math
import multiprocessing
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench.common import RESULTS, ROOT, Cache, Row, environment, environment_line, table

import memsched as ms

SIZES = (10_000, 50_000)
POINTS = (  # a shipped training step, bytes per second, share of the way from the least memory to the peak
    ("gpt-1024-b8-bf16", 12e9, 0.3),
    ("densenet121-224-b64-bf16", 0.0, 0.2),
    ("unet-64-b32-bf16", 24e9, 0.1),
    ("graphnet-40k-b1-bf16", 3e9, 0.2),
)
LIMITS = (1.0, 10.0)  # seconds
SIGNALS = (0.05, 0.3, 1.0, 3.0)  # seconds until Ctrl-C


def repeated(name: str, ops: int) -> ms.Graph:
    """A shipped training step over and over, until it has that many ops: all forwards, and the backwards in reverse.

    The last op of each part hands a byte to the first of the next, so that one depends on the other.
    """
    data = ms.profiles.load_graph(name).to_json()
    count = -(-ops // len(data["ops"]))
    tensors, parts = [], []
    for k in range(count):
        tensors += [one | {"name": f"{k}.{one['name']}"} for one in data["tensors"]]
        own = copy.deepcopy(data["ops"])
        for op in own:
            op["name"] = f"{k}.{op['name']}"
            for field in ("reads", "writes", "tape"):
                if field in op:
                    op[field] = [f"{k}.{tensor}" for tensor in op[field]]
        first = next(at for at, op in enumerate(own) if op["phase"] == "bwd")
        parts.append((own[:first], own[first:]))
    runs = [forward for forward, _ in parts] + [backward for _, backward in reversed(parts)]
    for at, (one, other) in enumerate(itertools.pairwise(runs)):
        tensors.append({"name": f"then.{at}", "size": 1, "role": "activation"})
        one[-1]["writes"].append(f"then.{at}")
        other[0]["reads"].append(f"then.{at}")
    header: dict[str, Any] = {key: value for key, value in data.items() if key not in ("ops", "tensors")}
    header |= {"name": f"{name}-x{count}", "resident": count * data.get("resident", 0)}
    return ms.Graph.from_json({**header, "tensors": tensors, "ops": [op for run in runs for op in run]})


def problem(name: str, ops: int, link: float, share: float) -> tuple[ms.Graph, ms.Device]:
    """The graph and the device of a point."""
    graph = repeated(name, ops)
    least, peak = ms.min_memory(graph), ms.peak_memory(graph)
    return graph, ms.Device(int(least + share * (peak - least)), link)


def measured(name: str, ops: int, link: float, share: float) -> Row:
    """Seconds of bounds, plans and validation, gaps, and what the process takes at most. For a process of its own."""
    graph, device = problem(name, ops, link, share)
    row: Row = {"graph": name, "ops": len(graph.ops), "link": link, "share": share, "graph_mib": largest()}

    def clocked(label: str, work: Callable[[], Any]) -> Any:
        began, found = time.process_time(), None
        with contextlib.suppress(ms.LimitError, ms.InfeasibleError):  # not in so little time
            found = work()
        row[f"{label}_seconds"] = round(time.process_time() - began, 2)
        return found

    found = None
    clocked("bounds", lambda: ms.bounds(graph, device=device, recompute=True))
    for limit in LIMITS:
        for label, call in (("selective", ms.selective), ("plan", ms.plan)):
            graph, device = problem(name, ops, link, share)  # anew, for which nothing is remembered
            work = partial(call, graph, device=device, time_limit=limit)
            plan = clocked(f"{label}_{limit:g}", work)
            found = plan or found
            row[f"{label}_{limit:g}_gap"] = plan.gap if plan else math.inf
    row["plan_mib"] = largest()
    assert clocked("validate", lambda: ms.validate(found)).proven
    row["validate_mib"] = largest()
    return row


def largest() -> int:
    """The most memory that this process has had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


CHILD = """
import signal
from bench.scale import problem
import memsched as ms
graph, device = problem({name!r}, {ops}, {link}, {share})
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a job of a shell
print("ready", flush=True)
try:
    {call}
    print("done", flush=True)
except KeyboardInterrupt:
    print("heard", flush=True)
"""
INTERRUPTED = {
    "selective": "ms.selective(graph, device=device)",
    "plan": "ms.plan(graph, device=device)",
    "bounds": "[ms.bounds(graph, device=ms.Device(device.memory + k, device.d2h), recompute=True) for k in range(99)]",
}


def interrupted(call: str, name: str, ops: int, link: float, share: float) -> float:
    """The longest time, in seconds, from a SIGINT to the end of the call."""
    longest = 0.0
    for seconds in SIGNALS:
        script = CHILD.format(name=name, ops=ops, link=link, share=share, call=call)
        with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            time.sleep(seconds)
            began = time.perf_counter()
            child.send_signal(signal.SIGINT)
            assert child.stdout.readline() == "heard\n", (call, name, seconds)
            longest = max(longest, time.perf_counter() - began)
            child.kill()
    return longest


def percent(gap: float) -> str:
    """A gap, for the table."""
    return f"{100 * gap:.1f} %" if gap < math.inf else "no plan"


def report(rows: list[Row]) -> str:
    """The page."""
    header = ["graph", "ops", "link", "share", *("bounds", "validate")]
    header += [f"{label}, {limit:g} s" for limit in LIMITS for label in ("selective", "plan")]
    header += ["graph", "with plans", "with validate", "Ctrl-C"]
    cells = []
    for row in rows:
        took = [
            f"{row[f'{label}_{limit:g}_seconds']:.2f} s, {percent(row[f'{label}_{limit:g}_gap'])}"
            for limit in LIMITS
            for label in ("selective", "plan")
        ]
        sizes = [f"{row[name]} MiB" for name in ("graph_mib", "plan_mib", "validate_mib")]
        heard = max(row[f"{name}_heard"] for name in INTERRUPTED)
        link, bound = f"{row['link'] / 1e9:g} GB/s", f"{row['bounds_seconds']:.2f} s"
        check = f"{row['validate_seconds']:.1f} s"
        cells.append([row["graph"], row["ops"], link, row["share"], bound, check, *took, *sizes, f"{heard:.2f} s"])
    late = [
        f"{label} in {row['graph']} with {row['ops']} ops and {limit:g} s"
        for row in rows
        for limit in LIMITS
        for label in ("selective", "plan")
        if row[f"{label}_{limit:g}_seconds"] > 1.2 * limit + 0.2
    ]
    return (
        "\n\n".join(
            [
                "# Graphs of 10,000 and 50,000 ops",
                "Written by `python -m bench.scale`; scale.csv beside it has every figure. "
                + environment_line(environment()),
                "Captured training steps ([profiles](../profiles.md)), repeated until they have so many ops: all "
                "forwards, then the backwards in reverse. Memory is the least without recomputation plus a share "
                "of the way to its peak. CPU seconds and proven gap with two time limits; the most memory that the "
                "process has had once the graph is there, after all plans, and after `validate`, which proved every "
                "bound; the longest wall time until Ctrl-C is heard, sent "
                f"{', '.join(f'{one:g}' for one in SIGNALS)} seconds after the start of selective, plan and bounds. "
                "Limits are of wall time: on a machine that is shared, a call gets less of the processor in it, and "
                "at 50,000 ops and 1 s then no plan, or that of a simpler planner.",
                table(header, cells),
                f"A limit is kept if a call takes at most 20 % and 0.2 s more: missed {len(late)} times"
                f"{': ' if late else ''}{'; '.join(late)}.",
            ]
        )
        + "\n"
    )


def main() -> None:
    """Measure all points, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one graph, no cache")
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "bench" / "scale.jsonl")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of scale.md and scale.csv")
    given = parser.parse_args()
    cache = Cache(None if given.quick else given.cache)
    points = [(name, ops, link, share) for ops in SIZES for name, link, share in POINTS][: 1 if given.quick else None]

    def compute(point: tuple[str, int, float, float]) -> Row:
        with multiprocessing.get_context("spawn").Pool(1) as own:
            row = own.apply(measured, point)
        return row | {f"{name}_heard": round(interrupted(call, *point), 3) for name, call in INTERRUPTED.items()}

    keyed = [(f"{point[0]} {point[1]}", lambda point=point: compute(point)) for point in points]
    rows = cache.through(keyed, "scale")
    given.out.mkdir(parents=True, exist_ok=True)
    with (given.out / "scale.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    (given.out / "scale.md").write_text(report(rows), encoding="utf-8")
    print(f"wrote {given.out / 'scale.md'} and scale.csv")


if __name__ == "__main__":
    main()

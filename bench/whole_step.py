"""selective on whole training steps, optimiser included, beside the best of sixteen combinations of flags.

python -m bench.whole_step             # docs/results/whole_step.md and whole_step.csv; resumes
python -m bench.whole_step --bounds    # the same points; only their bounds are derived anew
python -m bench.whole_step --quick --out /tmp/whole_step
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import datetime
import functools
import gzip
import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from bench.common import RESULTS, ROOT, Cache, Row, environment, environment_line, table
from bench.whole_step_flags import AHEAD, SMALL, schedules

import memsched as ms

GRAPHS = ("gpt-1024-b8", "llama-2048-b2", "vit-224-b64", "unet-64-b32", "encdec-256-b32", "moe-1024-b8")
GRAPHS += ("convnext-224-b64", "ssm-2048-b4", "detector-640-b16", "resnet50-224-b128", "graphnet-40k-b1")
GRAPHS += ("densenet121-224-b64",)
LINKS = (12e9, 24e9)  # bytes per second, each way
BUDGETS = 10
TIGHT = BUDGETS // 2  # the tighter half
MOVES = 200


def graph_of(name: str, folder: Path) -> ms.Graph:
    """The step, recorded once."""
    path = folder / f"{name}.json.gz"
    if not path.exists():
        from bench.profiles.steps import record  # needs torch

        folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(json.dumps(record(f"{name}-bf16", whole=True).to_json()).encode()))
    return ms.Graph.from_json(json.loads(gzip.decompress(path.read_bytes())))


class Points(Protocol):
    """What a step is measured by."""

    bounded: dict[str, ms.Graph]  # a row's keys of bounds, and the graphs that they are on
    ideal: float

    def point(self, link: float, k: int, moves: int) -> Row:
        """A budget, in tenths of the way."""


Made = Callable[[str, Path], Points]
Report = Callable[[list[Row], int], str]


class Flagged:
    """A step and its sixteen combinations."""

    def __init__(self, graph: ms.Graph) -> None:
        self.graph, self.flags = graph, schedules(graph)
        self.ideal = sum(op["choices"][0]["time"] for op in graph.ops)
        self.bounded = {"bound": graph}

    def point(self, link: float, k: int, moves: int) -> Row:
        """A budget, from what the leanest combination needs (0) to the peak: the best of the flags, and one plan."""
        least, peak = min(need for _, need, _ in self.flags), ms.peak_memory(self.graph)
        device = ms.Device(least + (peak - least) * k // BUDGETS, link, duplex=True)
        row: Row = {"graph": self.graph.name, "link": link / 1e9, "budget": k, "memory": device.memory}
        row["by_hand"] = math.inf
        for label, need, schedule in self.flags:
            if need <= device.memory:
                took = ms.simulate(self.graph, schedule.with_budget(device.memory), device).makespan / self.ideal
                if took < row["by_hand"]:
                    row |= {"by_hand": took, "flags": label}
        began = time.process_time()
        try:
            found = ms.selective(self.graph, device=device, moves=moves)
            assert ms.validate(found).proven
            row |= {"plan": found.makespan / self.ideal, "bound": found.lower_bound / self.ideal}
        except ms.InfeasibleError:
            row |= {"plan": math.inf, "bound": math.nan}
        row["seconds"] = round(time.process_time() - began, 2)
        return row


def _flagged(name: str, folder: Path) -> Flagged:
    return Flagged(graph_of(name, folder))


def saved(row: Row) -> float:
    """The share of the best combination's time that the plan saves."""
    return 1 - row["plan"] / row["by_hand"]


def report(rows: list[Row], moves: int) -> str:
    """The page."""
    tight = [saved(row) for row in rows if row["budget"] < TIGHT]
    lost = [row for row in rows if saved(row) < -1e-9]
    names = list(dict.fromkeys(row["graph"] for row in rows))
    budgets = ", ".join(str(k) for k in sorted({row["budget"] for row in rows}))
    met = not lost and np.mean(tight) >= 0.1
    text = [
        "# Whole training steps: plans beside flags",
        "",
        f"`ms.selective` with {moves} moves on {len(names)} captured training steps in bfloat16 with AdamW, one update "
        "for each parameter. Parameters and states are [persistent](../schedule.md#repeated-schedules), and the "
        "makespan is the period of the steady state. Bytes are exact, times are modelled for an A100 "
        "([profiles](../profiles.md)). Links have the given bandwidth each way. Every plan was validated.",
        "",
        "By hand: the best of sixteen combinations, each written as a schedule and simulated. Checkpoints: each block "
        f"runs again before its backward. Offload: all activations of at least {SMALL >> 20} MiB that the backward "
        "reads. States: those of the optimiser are on the host, and travel around each update. Early: each update as "
        "soon as its gradient is there. What travels is fetched "
        f"{', '.join(map(str, AHEAD[:-1]))} or {AHEAD[-1]} runs before it is read, whichever is fastest.",
        "",
        f"Budgets are tenths of the way from the least that a combination needs (0) to the peak of the plain run (10). "
        f"Measured: {budgets}. The tighter half are those below {TIGHT}. Where only a combination that offloads all "
        "activations fits, it takes many times as long, so the median says more than the mean.",
        "",
        f"Over the tighter half, the plan takes {100 * np.mean(tight):.1f} % less time than the best combination on "
        f"average, {100 * np.median(tight):.1f} % in the median and {100 * min(tight):.1f} % at worst. It is slower at "
        f"{len(lost)} of {len(rows)} points. The goal (never slower, and at least 10 % faster on average in the "
        f"tighter half) is {'met' if met else '**not met**'} at these points.",
        "",
    ]
    over = {k: [row["plan"] / row["bound"] - 1 for row in rows if row["budget"] == k] for k in range(BUDGETS)}
    text += [
        "Over the bound on all plans of the step, by budget: "
        + ", ".join(f"{k}: {100 * np.mean(some):.1f} %" for k, some in over.items() if some)
        + f". That is {100 * np.mean([one for some in over.values() for one in some]):.1f} % on average.",
        "",
    ]
    cells = []
    for name in names:
        for link in dict.fromkeys(row["link"] for row in rows):
            own = [row for row in rows if (row["graph"], row["link"]) == (name, link)]
            if own:
                half = [saved(row) for row in own if row["budget"] < TIGHT]
                all_ = [saved(row) for row in own]
                first = own[0]
                gaps = [row["plan"] / row["bound"] - 1 for row in own]
                cells.append(
                    [
                        *(name.removesuffix("-bf16"), f"{link:g}", f"{first['by_hand']:.2f}", f"{first['plan']:.2f}"),
                        *(f"{100 * np.mean(half):.1f}", f"{100 * np.mean(all_):.1f}", f"{100 * min(all_):.1f}"),
                        *(f"{100 * np.mean(gaps):.1f}", f"{np.mean([row['seconds'] for row in own]):.0f}"),
                    ]
                )
    head = [
        "step",
        "GB/s",
        "by hand",
        "plan",
        "less, tighter half",
        "less, all",
        "at worst",
        "over bound",
        "s",
    ]
    text += [
        "Two times, at the least budget, in units of the sum of all runs. The rest: percent, and seconds of a plan.",
        "",
    ]
    text += [table(head, cells), ""]
    if lost:
        text += ["Where the plan is slower:", ""]
        text += [
            f"* {row['graph']}, {row['link']:g} GB/s, budget {row['budget']}: {row['plan']:.3f} against "
            f"{row['by_hand']:.3f} ({row['flags']})"
            for row in lost
        ]
        text.append("")
    return "\n".join([*text, environment_line(environment()), ""])


def run(page: str, made: Made, shares: tuple[Sequence[int], Sequence[int]], moves: int, write: Report) -> None:
    """Measure the points of each step, as options of the command line say, and write a page.

    `made` makes a step of its name, `shares` are the budgets, and those of a quick run.
    """
    options = argparse.ArgumentParser()
    options.add_argument("--out", type=Path, default=RESULTS)
    options.add_argument("--only", nargs="*", default=GRAPHS)
    options.add_argument("--moves", type=int, default=moves)
    options.add_argument("--quick", action="store_true")
    options.add_argument("--bounds", action="store_true")
    asked = options.parse_args()
    folder = ROOT / "build" / "whole_step"
    if asked.bounds:
        return _bound_anew(asked.out / page, functools.partial(made, folder=folder), asked.moves, write)
    cache = Cache(folder / f"{page}-{asked.moves}.json")
    rows = []
    for name in asked.only:
        step = functools.cache(functools.partial(made, name, folder))
        for link in LINKS:
            keyed = [
                (f"{name} {link / 1e9:g} {k}", lambda link=link, k=k, step=step: step().point(link, k, asked.moves))
                for k in shares[asked.quick]
            ]
            rows += cache.through(keyed, f"{name}, {link / 1e9:g} GB/s")
    asked.out.mkdir(parents=True, exist_ok=True)
    _write(asked.out / page, write(rows, asked.moves), rows)


def _write(path: Path, text: str, rows: list[Row]) -> None:
    """The page and its rows."""
    path.with_suffix(".md").write_text(text, encoding="utf-8")
    with path.with_suffix(".csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)))
        writer.writeheader()
        writer.writerows(rows)


def _bound_anew(path: Path, made: Callable[[str], Points], moves: int, write: Report) -> None:
    """Write the page with the same plans, and bounds at least as large."""
    with path.with_suffix(".csv").open(encoding="utf-8", newline="") as file:
        rows: list[Row] = list(csv.DictReader(file))
    step = functools.cache(made)
    for row in rows:
        row |= {key: _value(text) for key, text in row.items()}
        found = step(row["graph"].removesuffix("-bf16"))
        for key, graph in found.bounded.items():
            device = ms.Device(row["memory"], row["link"] * 1e9, duplex=True)
            row[key] = max(row[key], ms.bounds(graph, device=device).recompute / found.ideal)
    last = path.with_suffix(".md").read_text(encoding="utf-8").rstrip().rpartition("\n")[2].partition(" Bounds were")[0]
    text = write(rows, moves).rstrip().rpartition("\n")[0]
    _write(path, f"{text}\n{last} Bounds were derived again on {datetime.date.today()}, for these plans.\n", rows)


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


if __name__ == "__main__":
    run("whole_step", _flagged, (range(BUDGETS), (1, 4, 8)), MOVES, report)

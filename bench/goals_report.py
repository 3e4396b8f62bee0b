"""The Markdown of docs/results/goals.md, from what bench.goals measured."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from bench.common import Row, environment_line, table

LARGEST_GAP = {True: 0.005, False: 0.05}  # in pieces of 16 MiB, and whole
MEAN_GAP = 0.015
GROWTH = ("dynprog(slots=500)", "dynprog(slots=None)", "offload, one evaluation", "simulate", "validate")


def percent(value: float, digits: int = 2) -> str:
    """A share as text."""
    return f"{100 * value:.{digits}f} %"


def verdict(met: bool) -> str:
    """For the table of goals."""
    return "met" if met else "**not met**"


def where(row: Row) -> str:
    """One point."""
    return f"{row['profile']} at {row['percent']:g} %"


def share(values: Iterable[bool]) -> float:
    """Of true ones."""
    return float(np.mean(list(values)))


def slots_part(rows: list[Row]) -> tuple[list[list[str]], str]:
    """Pruned against hash tables."""
    measured = [row for row in rows if row["status"] == "measured"]
    ratios = np.array([row["ratio"] for row in measured])
    large = [row for row in rows if row["status"] == "hash table too large"]
    none = [row for row in rows if row["status"] == "no solution in slots"]
    dense = [row for row in measured if row["profile"].startswith("densenet201") and row["percent"] == 70]
    least = min(measured, key=lambda row: row["ratio"])
    slow = [row for row in measured if row["ratio"] < 1 / 1.2]
    goals = []
    if dense:
        lowest = min(row["ratio"] for row in dense)
        goals.append(
            [
                "dynprog(slots=500) at least 50x faster than hash tables on DenseNet-201 at 70 %",
                f"at least {lowest:.0f}x on {len(dense)} profiles",
                verdict(lowest >= 50),
            ]
        )
    goals.append(
        [
            "dynprog(slots=500) nowhere more than 1.2x slower than hash tables",
            f"slower on {len(slow)} of {len(measured)}; least ratio {ratios.min():.2f} ({where(least)}), median "
            f"{np.median(ratios):.0f}",
            verdict(not slow),
        ]
    )
    by_percent = [
        [f"{at:g} %", len(own), f"{min(own):.2f}", f"{np.median(own):.0f}", f"{max(own):.0f}"]
        for at in sorted({row["percent"] for row in measured})
        for own in [[row["ratio"] for row in measured if row["percent"] == at]]
    ]
    lines = [
        "## dynprog(slots=500): dominance and bounds against hash tables",
        "CPU time of hash tables divided by that of the default method, on the same discretised instance, taken in "
        "turns, best of several rounds (one round where hash tables take over 0.5 s). Memory is in percent of "
        f"dynprog's own range. {len(measured)} instances. On {len(large)} more, hash tables would hold over 60 "
        f"million states and were stopped; {len(none)} more have no solution in slots.",
        table(["memory", "instances", "least ratio", "median", "largest"], by_percent),
        f"The two methods found the same value on {sum(row['same_value'] for row in measured)} of {len(measured)}, "
        f"and the default method proved its value optimal on {sum(row['proven'] for row in measured)}.",
    ]
    if dense:
        cells = [
            [row["profile"], f"{row['ratio']:.0f}", f"{row['hash_states']:.2g}", row["pruned_states"]] for row in dense
        ]
        lines += ["DenseNet-201 at 70 %:", table(["profile", "ratio", "states, hash", "states, default"], cells)]
    if slow:
        cells = [[where(row), f"{row['ratio']:.2f}", f"{1e6 * row['pruned_seconds']:.0f} us"] for row in slow]
        lines += ["More than 1.2x slower:", table(["instance", "ratio", "default method"], cells)]
    return goals, "\n\n".join(lines)


def exact_part(rows: list[Row]) -> tuple[list[list[str]], str]:
    """Proofs in the paper's model."""
    near = share(row["gap"] <= 0.003 * (1 + 1e-9) for row in rows)
    exact = share(row["exact"] for row in rows)
    lower = [row for row in rows if row["graph_bound"] < row["model_bound"] * (1 - 1e-9)]
    apart = [row for row in rows if row["gap_to_graph_bound"] > 0.003 * (1 + 1e-9)]
    limit = max(row["exact_seconds"] for row in rows)
    goals = [
        [
            "dynprog(slots=None) proven within 0.3 % in 0.5 s, everywhere, in its own model",
            f"{percent(near, 1)} of {len(rows)} points; slowest {max(row['seconds'] for row in rows):.3f} s",
            verdict(near == 1),
        ],
        [
            "dynprog(slots=None) exact in 10 s on 80 %",
            f"{percent(exact, 1)}; slowest {limit:.2f} s, median "
            f"{np.median([row['exact_seconds'] for row in rows]):.4f} s",
            verdict(exact >= 0.8),
        ],
    ]
    lines = [
        "## dynprog(slots=None): the interruptible model on real sizes",
        "Every profile at ten limits, from 0 % to 90 % of the way from dynprog's least memory to the peak. The gap "
        "is between the value of the best set and the lower bound, both in the paper's model, where x_k travels "
        f"whole. Within 0.3 % after at most 0.5 s: {percent(near, 1)}; largest gap "
        f"{percent(max(row['gap'] for row in rows), 3)}.",
        f"On {len(lower)} points the bound on the graph is lower than that of the paper's model, by up to "
        f"{percent(max((1 - row['graph_bound'] / row['model_bound'] for row in rows), default=0.0))}. In the graph a "
        "stage's output and the rest of what it saves are two tensors, so plans exist that the model does not have, "
        f"and the model's optimum lies above that bound. On {len(apart)} points the gap to the graph's bound exceeds "
        f"0.3 %; the largest is {percent(max(row['gap_to_graph_bound'] for row in rows))}.",
    ]
    if apart:
        worst = sorted(apart, key=lambda row: -row["gap_to_graph_bound"])[:8]
        cells = [[where(row), percent(row["gap"], 3), percent(row["gap_to_graph_bound"])] for row in worst]
        lines.append(table(["furthest from the graph's bound", "gap in the model", "to the graph's bound"], cells))
    return goals, "\n\n".join(lines)


def offload_part(rows: list[Row]) -> tuple[list[list[str]], str]:
    """Certified gaps."""
    goals, lines = [], []
    limit = rows[0]["time_limit"]
    busy = [row["cpu_seconds"] / row["seconds"] for row in rows if row["seconds"] > limit / 2]
    for pieces in (True, False):
        own = [row for row in rows if (row["chunk"] is not None) == pieces]
        name = "pieces of 16 MiB" if pieces else "whole tensors"
        gaps = np.array([row["gap"] for row in own])
        worst = max(own, key=lambda row: row["gap"])
        limits = f"at most {percent(LARGEST_GAP[pieces], 1)}"
        if not pieces:
            limits += f", {percent(MEAN_GAP, 1)} on average"
        met = gaps.max() <= LARGEST_GAP[pieces] and (pieces or gaps.mean() <= MEAN_GAP)
        goals.append(
            [
                f"offload after {limit:g} s, {name}: {limits} above the bound",
                f"mean {percent(gaps.mean(), 3)}, largest {percent(gaps.max())} ({where(worst)})",
                verdict(bool(met)),
            ]
        )
        above = sorted((row for row in own if row["gap"] > LARGEST_GAP[pieces]), key=lambda row: -row["gap"])
        proven = share(row["optimal"] for row in own)
        lines.append(
            f"{name[0].upper() + name[1:]}: {len(own)} points; mean gap {percent(gaps.mean(), 3)}, median "
            f"{percent(float(np.median(gaps)), 4)}, 95th percentile {percent(float(np.quantile(gaps, 0.95)))}, "
            f"largest {percent(gaps.max())}; optimal by meeting the bound on {percent(proven, 0)}; {len(above)} "
            f"above {percent(LARGEST_GAP[pieces], 1)}."
        )
        if above:
            cells = [[where(row), percent(row["gap"]), row["evaluations"]] for row in above]
            lines.append(table([f"above {percent(LARGEST_GAP[pieces], 1)}, {name}", "gap", "evaluations"], cells))
        by_limit = [
            [f"{at:g} %", percent(float(np.mean(here)), 3), percent(max(here))]
            for at in sorted({row["percent"] for row in own})
            for here in [[row["gap"] for row in own if row["percent"] == at]]
        ]
        lines.append(table([f"memory, {name}", "mean gap", "largest"], by_limit))
    text = (
        "Every profile at ten limits, from 0 % to 90 % of the way from the least memory of any plan to the peak. The "
        "gap is certified: the simulated makespan relative to a bound on every plan without recomputation."
    )
    if busy:
        text += (
            " The limit is wall time. The machine was shared: where the limit was reached, the search had "
            f"{percent(float(np.mean(busy)), 0)} of a core on average."
        )
    return goals, "\n\n".join([f"## offload after {limit:g} s", text, *lines])


def whole_part(rows: list[Row], offload: list[Row]) -> tuple[list[list[str]], str]:
    """What no plan of whole tensors can reach, beside what was reached."""
    largest = LARGEST_GAP[False]
    above = [where(row) for row in offload if row["chunk"] is None and row["gap"] > largest]
    proven = {where(row): row["proven_gap"] for row in rows}
    impossible = [point for point in above if proven.get(point, 0.0) > largest]
    goals = []
    if above:
        goals.append(
            [
                f"where offload is above {percent(largest, 1)} with whole tensors, no such plan can be below it",
                f"proven on {len(impossible)} of {len(above)} points",
                verdict(len(impossible) == len(above)),
            ]
        )
    text = (
        "The bound above lets any byte travel on its own. bench/whole_tensors.py bounds the plans that move each "
        "tensor whole, by a search over all sets of tensors, which is feasible for the at most 24 tensors of "
        "resnet18. Whether plans can close the gap in the last column is open. The rest is the price of moving whole "
        "tensors, which pieces avoid."
    )
    cells = [
        [
            where(row),
            percent(row["proven_gap"], 3),
            percent(row["offload_gap"], 3),
            percent((row["offload_gap"] - row["proven_gap"]) / (1 + row["proven_gap"]), 3),
        ]
        for row in rows
    ]
    head = ["point", "every plan of whole tensors, at least", "offload, 1 s", "offload above that"]
    return goals, "\n\n".join(["## What whole tensors cannot reach", text, table(head, cells)])


def simulate_part(rows: list[Row]) -> tuple[list[list[str]], str]:
    """Steps a second."""
    big = rows[0]
    goals = [
        [
            "the simulator runs at least 5 million steps per second",
            f"{big['steps_per_second'] / 1e6:.1f} million ({big['steps']} steps)",
            verdict(big["steps_per_second"] >= 5e6),
        ]
    ]
    cells = [
        [
            row["profile"],
            "whole" if row["chunk"] is None else f"pieces of {row['chunk'] >> 20} MiB",
            row["steps"],
            f"{row['steps_per_second'] / 1e6:.1f}",
            f"{row['set_steps_per_second'] / 1e6:.1f}",
            row["everything_steps"],
            f"{row['everything_steps_per_second'] / 1e6:.1f}",
        ]
        for row in rows
    ]
    head = [
        "profile, 40 %",
        "",
        "steps",
        "simulate",
        "the search's inner loop",
        "steps, all travels",
        "inner loop, all travels",
    ]
    text = (
        "Million steps per second of CPU time, best of several. `simulate` checks a plan and builds its whole "
        "timeline. The search's inner loop times the eager plan of a set and builds neither plan nor timeline; the "
        "steps counted are those of that plan: greedy's, and the one in which everything travels."
    )
    return goals, "\n\n".join(["## Simulator", text, table(head, cells)])


def growth_part(rows: list[Row]) -> str:
    """Cost against the number of stages."""
    stages = sorted({row["stages"] for row in rows})
    medians = {
        name: [float(np.median([row[name] for row in rows if row["stages"] == n])) for n in stages] for name in GROWTH
    }
    cells = []
    for name, values in medians.items():
        slope = np.polyfit(np.log(stages), np.log(values), 1)[0] if len(stages) > 1 else float("nan")
        cells.append(
            [name, *(f"{value / values[0]:.3g}" for value in values), f"{slope:.2f}", f"{1e3 * values[0]:.3g} ms"]
        )
    open_ = [row for row in rows if not row["exact"]]
    text = (
        f"Random chains (`memsched.profiles.random`, median of {len({row['seed'] for row in rows})} seeds), memory "
        "at 40 %, and a link that is as busy as the compute stream. CPU time relative to that of the shortest chain; "
        "the exponent is that of a power law fitted to all lengths. One evaluation of offload times a plan of the "
        f"whole chain, so its exponent is at least 1. dynprog(slots=None) reached its limit of 10 s on {len(open_)} "
        f"of {len(rows)} chains"
    )
    if open_:
        text += f", with proven gaps of at most {percent(max(row['exact_gap'] for row in open_), 3)}"
    head = ["stages", *map(str, stages), "exponent", f"at {stages[0]}"]
    return "\n\n".join(["## Growth of the cost", text + ".", table(head, cells)])


WITH_GOALS = {"slots": slots_part, "exact": exact_part, "offload": offload_part, "simulate": simulate_part}
WITHOUT = {"growth": growth_part}


def report(document: Row) -> str:
    """All parts that were measured."""
    goals: list[list[str]] = []
    sections = []
    for part, rows in document["parts"].items():
        if not rows:
            continue
        if part == "whole":
            found, section = whole_part(rows, document["parts"].get("offload", []))
            goals += found
        elif part in WITH_GOALS:
            found, section = WITH_GOALS[part](rows)
            goals += found
        else:
            section = WITHOUT[part](rows)
        sections.append(section)
    lines = [
        "# Goals of speed and quality",
        "Written by `python -m bench.goals`; goals.json beside it has every point. "
        + environment_line(document["environment"]),
        "Ratios compare calls that took turns in one run on this machine. They depend on the processor and on other "
        "work, though less than seconds do.",
    ]
    if goals:
        lines.append(table(["goal", "measured", ""], goals))
    return "\n\n".join([*lines, *sections]) + "\n"

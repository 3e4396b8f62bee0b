"""The claims of OLLA's authors, and our goals, against our figures: one row each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from bench.common import Row
from bench.goals_report import verdict
from bench.papers.olla2022_figures import fragmentation, hole, mean, of, saved, slack, total
from bench.papers.olla2022_graphs import BATCHES
from bench.papers.page import Parts
from bench.papers.verdict import THEIRS, Cases, Claim, Figure, Ordering, Setting

GOALS_HEAD = ("goal", "measured", "verdict")
PAPER_ORDER = {1: 22.5, 32: 10.1}
PAPER_FRAGMENTATION = {1: 7.9, 32: 26.1}
PAPER_TOTAL = {1: 30.4, 32: 36.1}
MINUTE = 60.0  # our reading of "quickly"

EMULATED = Setting(hardware="an emulation of the allocator's policy instead of the allocator itself")
CAPTURED = Setting(
    network="our graphs are captured differently: views and weights are not ops, and a write in place belongs to the "
    "op that made the storage"
)
SOLVER = Setting(
    algorithm="memsched's own search instead of the ILP in Gurobi", hardware="seconds of another processor"
)


def proven(rows: Sequence[Row]) -> Setting:
    """An optimum is the same whoever finds it; where one is not proven, our search is another algorithm."""
    if rows and all(row["optimal"] for row in rows):
        return THEIRS
    return Setting(algorithm="memsched's own search instead of the ILP, whose results are not all proven optimal")


def name(row: Row) -> str:
    return f"{row['network']}, batch {row['batch']}"


def gap(row: Row) -> float:
    """How far the peak can be above the optimum, as a share of what is proven."""
    return float(row["ours"] / row["bound"] - 1)


def claim_sizes(rows: list[Row]) -> Claim:
    counts = {row["network"]: row["ops"] for row in of(rows, 1)}
    ends = [
        (label, Figure(values=[counts[network]], low=paper, high=paper, form="{:.0f}"))
        for label, network, paper in (("AlexNet", "alexnet", 118), ("XLM-R", "xlmr", 2007))
        if network in counts
    ]
    return Claim(
        text="The networks have 118 (AlexNet) to 2007 operators (XLM-R) (5.2)",
        paper="118 to 2007",
        setting=CAPTURED,
        evidence=tuple(ends),
        more=f"{min(counts.values())} to {max(counts.values())} in all",
    )


def claim_order(rows: list[Row], batch: int) -> Claim:
    own = of(rows, batch)
    paper = PAPER_ORDER[batch]
    return Claim(
        text=f"Another order saves {paper} % of the peak at batch {batch} on average (5.3)",
        paper=f"{paper} %",
        setting=proven(own),
        evidence=(
            ("percent", Figure(values=[saved(row) for row in own], low=paper, high=paper, of="mean", form="{:.1f}")),
        ),
        why="At batch 1 gradients are as large as activations, and running each update early frees them."
        if batch == 1
        else "Activations grow with the batch and stay until the backward needs them, in every order.",
    )


def claim_most(rows: list[Row]) -> Claim:
    own = [row for row in rows if row["optimizer"] == "sgd"]
    best = max(own, key=saved)
    return Claim(
        text="Another order saves up to 38 % (5.3)",
        paper="38 %",
        setting=proven(own),
        evidence=(("the most", Figure(values=[saved(best)], low=38, high=38, form="{:.1f}")),),
        more=name(best),
        why="With SGD.",
    )


def claim_batch(rows: list[Row]) -> Claim:
    small, large = ({row["network"]: saved(row) for row in of(rows, batch)} for batch in BATCHES)
    less = sorted(network for network in small if large[network] >= small[network])
    return Claim(
        text="Another order saves more at small batches (5.3)",
        paper="more at batch 1",
        setting=proven([row for row in rows if row["optimizer"] == "sgd"]),
        evidence=(
            (
                "saved at batch 32 against batch 1",
                Ordering(pairs=[(large[network], small[network]) for network in small]),
            ),
        ),
        more=f"not for {', '.join(less)}" if less else "",
        why="Where the weights of a classifier are most of the memory, the batch changes little.",
    )


def claim_fragmentation(rows: list[Row], batch: int) -> Claim:
    own, paper = of(rows, batch), PAPER_FRAGMENTATION[batch]
    return Claim(
        text=f"PyTorch's allocator suffers from {paper} % fragmentation at batch {batch} on average (5.4)",
        paper=f"{paper} %",
        setting=EMULATED,
        evidence=(
            (
                "percent",
                Figure(values=[fragmentation(row) for row in own], low=paper, high=paper, of="mean", form="{:.1f}"),
            ),
        ),
        more=f"against the most in use {mean([slack(row) for row in own]):.1f}",
        why="The first figures are the paper's measure, when the reserved bytes first are at their peak; by then much "
        "has been freed already. The last one compares with the most bytes in use.",
    )


def claim_no_fragmentation(rows: list[Row]) -> Claim:
    return Claim(
        text="Planned addresses eliminate fragmentation in all scenarios (5.4)",
        paper="0 %",
        setting=proven(rows),
        evidence=(("", Cases(holds=[row["height"] == row["load"] for row in rows], what="no gap:")),),
        more=f"at most {max(hole(row) for row in rows):.3f} %",
        why="SGD and Adam. It is not possible for every set of lifetimes.",
    )


def claim_order_seconds(rows: list[Row]) -> Claim:
    seconds = [row["seconds"] for row in rows if row["optimizer"] == "sgd"]
    return Claim(
        text="Ordering takes a median of 1.4 s, 5.2 s at most but for EfficientNet (5.5)",
        paper="1.4 s",
        setting=SOLVER,
        evidence=(("s", Figure(values=seconds, low=1.4, high=1.4, of="median", form="{:.4f}")),),
        why="One thread, wall time, EfficientNet included.",
    )


def claim_efficientnet(rows: list[Row], anytime: list[Row]) -> Claim:
    own = [row for row in rows if row["network"] == "efficientnet" and row["optimizer"] == "sgd"]
    solver = [row for row in anytime if row["kind"] == "order ilp" and row["network"] == "efficientnet"]
    told = ", ".join(
        f"{'proven' if row['optimal'] else 'not proven'} after {row['seconds']:.0f} s at batch {row['batch']}"
        for row in solver
        if row["limit"] == max(one["limit"] for one in solver)
    )
    return Claim(
        text="EfficientNet: 2 minutes to the optimal order at batch 1, 5 minutes to within 1 % at batch 32 (5.5)",
        paper="120 s, 300 s",
        setting=SOLVER,
        evidence=tuple(
            (f"s at batch {row['batch']}", Figure(values=[row["seconds"]], low=paper, high=paper, form="{:.3f}"))
            for row, paper in zip(own, (120, 300), strict=False)
        ),
        more=", ".join(f"gap {100 * gap(row):.2f} % at batch {row['batch']}" for row in own),
        why=f"The same ILP in HiGHS: {told}." if told else "",
    )


def claim_place_seconds(rows: list[Row]) -> Claim:
    own = [row for row in rows if row["optimizer"] == "sgd"]
    slow = max(own, key=lambda row: row["seconds"])
    return Claim(
        text="Addresses take a median of 5.7 s; GoogLeNet and EfficientNet need up to 5 minutes to be below 1 % (5.6)",
        paper="5.7 s",
        setting=SOLVER,
        evidence=(
            ("s", Figure(values=[row["seconds"] for row in own], low=5.7, high=5.7, of="median", form="{:.4f}")),
        ),
        more=f"longest with {name(slow)}",
        why="Until no fragmentation is left or the time limit ends it. One thread, wall time.",
    )


def claim_total(rows: list[Row], batch: int) -> Claim:
    paper = PAPER_TOTAL[batch]
    return Claim(
        text=f"Together they save {paper} % at batch {batch} on average (5.7)",
        paper=f"{paper} %",
        setting=EMULATED,
        evidence=(
            (
                "percent",
                Figure(values=[total(row) for row in of(rows, batch)], low=paper, high=paper, of="mean", form="{:.1f}"),
            ),
        ),
        why="In percent of what the emulated allocator reserves for PyTorch's order.",
    )


def saved_minutes(row: Row) -> float:
    """Of allocating, in a million steps."""
    return float(row["allocator"] - row["arena"]) * 1e6 / 60


def claim_allocator(rows: list[Row]) -> Claim:
    """With the paper's batch and SGD."""
    saved = [saved_minutes(row) for row in rows if (row["batch"], row["optimizer"]) == (32, "sgd")]
    return Claim(
        text="Without the allocator a million steps at batch 32 are 5 minutes shorter on average (5.7)",
        paper="5 min",
        setting=Setting(hardware="the allocator of the CPU, not CUDA's", network="some of the paper's networks"),
        evidence=(("min", Figure(values=saved, low=5, high=5, of="mean", form="{:.1f}")),),
        why="A table of requests is shorter than a search for free memory.",
    )


def claim_ilp(rows: list[Row], anytime: list[Row], ordered: list[Row]) -> Claim:
    """The small steps, and EfficientNet with the longest limit."""
    best = {(row["network"], row["batch"]): row["ours"] for row in ordered if row["optimizer"] == "sgd"}
    longest = max((row["limit"] for row in anytime if row["kind"] == "order ilp"), default=0.0)
    own = [row for row in rows if row["kind"] == "order ilp"]
    own += [row for row in anytime if row["kind"] == "order ilp" and row["limit"] == longest]
    equal = sum(row["found"] == best[row["network"], row["batch"]] for row in own)
    quick = [row["optimal"] and row["seconds"] <= MINUTE for row in own]
    return Claim(
        text="The simplified ILP can be solved quickly by commodity solvers (1, 4)",
        paper="quickly",
        evidence=(("proven in a minute", Cases(holds=quick)),),
        more=f"the same peak as ours in {equal}",
        why="Equation 14 in HiGHS, which is free, from the order of a beam search; the paper had Gurobi. We read "
        "quickly as in a minute. Small steps and EfficientNet; larger ones were not tried.",
    )


def claims(parts: Parts) -> list[Claim]:
    """All rows, in the order of the paper."""
    ordered, placed = parts["orders"], parts["addresses"]
    return [
        claim_ilp(parts["ilp"], parts["anytime"], ordered),
        claim_sizes(ordered),
        *(claim_order(ordered, batch) for batch in BATCHES),
        claim_most(ordered),
        claim_batch(ordered),
        *(claim_fragmentation(placed, batch) for batch in BATCHES),
        claim_no_fragmentation(placed),
        claim_order_seconds(ordered),
        claim_efficientnet(ordered, parts["anytime"]),
        claim_place_seconds(placed),
        *(claim_total(placed, batch) for batch in BATCHES),
        claim_allocator(parts["allocator"]),
    ]


def goals(parts: dict[str, list[Row]]) -> list[list[str]]:
    """Ours, over both batches and both optimisers; some also with the steps that ship with memsched."""
    own = parts["shipped"]
    own_proven = [row for row in own if row["optimal"]]
    own_free = [row for row in own if row["height"] == row["load"]]
    ordered, placed = parts["orders"], parts["addresses"]
    proven = [row for row in ordered if row["optimal"]]
    seconds, place_seconds = ([row["seconds"] for row in rows] for rows in (ordered, placed))
    free = [row for row in placed if row["height"] == row["load"]]
    worst_gap, worst_hole = max(gap(row) for row in ordered), max(hole(row) for row in placed)
    above = [row for row in ordered if row["ours"] > min(row["pytorch"], row["inductor"])]
    both = (len(proven) + len(own_proven)) / (len(ordered) + len(own))
    shares = len(proven) / len(ordered), len(free) / len(placed)
    return [
        [
            "order: proven optimal on 95 % of these steps",
            f"{len(proven)} of {len(ordered)}",
            verdict(shares[0] >= 0.95),
        ],
        [
            "order: proven optimal on 95 % of these and the steps that ship with memsched",
            f"{len(proven)} of {len(ordered)} and {len(own_proven)} of {len(own)}",
            verdict(both >= 0.95),
        ],
        ["order: the rest within 1 %", f"at most {100 * worst_gap:.3f} %", verdict(worst_gap <= 0.01)],
        ["order: median 0.05 s", f"{np.median(seconds):.4f} s", verdict(bool(np.median(seconds) <= 0.05))],
        ["order: worst 1 s", f"{max(seconds):.3f} s", verdict(max(seconds) <= 1)],
        [
            "order: never above PyTorch's or Inductor's",
            f"above in {len(above)}" + "".join(f", {name(row)} ({row['optimizer']})" for row in above),
            verdict(not above),
        ],
        ["addresses: no fragmentation on 90 %", f"{len(free)} of {len(placed)}", verdict(shares[1] >= 0.9)],
        [
            "addresses: none on the steps that ship",
            f"{len(own_free)} of {len(own)}",
            verdict(len(own_free) == len(own)),
        ],
        ["addresses: at most 0.5 % on all", f"{worst_hole:.3f} %", verdict(worst_hole <= 0.5)],
        ["addresses: 2 s", f"{max(place_seconds):.3f} s at most", verdict(max(place_seconds) <= 2)],
    ]

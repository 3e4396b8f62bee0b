"""The tables of docs/results/olla2022.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.common import Row, table
from bench.papers.olla2022_claims import gap, saved_minutes
from bench.papers.olla2022_figures import (
    expandable,
    fragmentation,
    hole,
    mean,
    order_total,
    saved,
    slack,
    total,
)
from bench.papers.olla2022_graphs import NETWORKS

RULES = ("LPMF", "BFS", "DFS")


def title(row: Row) -> str:
    return NETWORKS[row["network"]].title


def megabytes(count: float) -> str:
    return f"{count / 1e6:.1f}"


def means(label: str, rows: Sequence[Row], columns: Sequence[Callable[[Row], float] | None]) -> list[str]:
    """A last line of averages; None leaves a cell empty."""
    return [label, *("" if column is None else f"{mean([column(row) for row in rows]):.1f}" for column in columns)]


def orders_table(rows: Sequence[Row]) -> str:
    """Peaks in MB, and what they save."""
    cells = [
        [
            title(row),
            row["ops"],
            megabytes(row["pytorch"]),
            megabytes(row["ours"]),
            *(f"{saved(row, rule):.1f}" for rule in RULES),
            f"**{saved(row):.1f}**",
            "yes" if row["optimal"] else f"{100 * gap(row):.2f} %",
            f"{1e3 * row['seconds']:.1f}",
        ]
        for row in rows
    ]
    columns: list[Callable[[Row], float] | None] = [None, None, None]
    columns += [lambda row, rule=rule: saved(row, rule) for rule in RULES]  # type: ignore[misc]
    cells.append([*means("average", rows, [*columns, saved]), "", ""])
    head = ["network", "ops", "PyTorch (MB)", "ours (MB)", *(f"{rule} saves (%)" for rule in RULES)]
    return table([*head, "ours saves (%)", "proven", "ms"], cells)


def addresses_table(rows: Sequence[Row]) -> str:
    """What the allocator reserves, and planned addresses."""
    cells = [
        [
            title(row),
            row["buffers"],
            megabytes(row["reserved"]),
            f"{fragmentation(row):.1f}",
            f"{slack(row):.1f}",
            f"{expandable(row):.1f}",
            megabytes(row["resident"] + row["height"]),
            f"{hole(row):.3f}".rstrip("0").rstrip("."),
            f"{100 * (row['by size'] / row['load'] - 1):.2f}",
            f"{1e3 * row['seconds']:.1f}",
            f"{order_total(row):.1f}",
            f"**{total(row):.1f}**",
        ]
        for row in rows
    ]
    columns = [
        None,
        None,
        fragmentation,
        slack,
        expandable,
        None,
        hole,
        lambda row: 100 * (row["by size"] / row["load"] - 1),
    ]
    cells.append(means("average", rows, [*columns, None, order_total, total]))
    head = ["network", "buffers", "reserved (MB)", "fragmentation (%)", "against the most in use (%)"]
    head += ["so with expandable segments (%)", "planned (MB)"]
    head += ["fragmentation, planned (%)", "by size: above the load (%)", "ms", "order alone saves (%)"]
    return table([*head, "both save (%)"], cells)


def ilp_table(rows: Sequence[Row], ordered: Sequence[Row]) -> str:
    """Equation 14 in HiGHS against the default."""
    ours = {(row["network"], row["batch"]): row for row in ordered if row["optimizer"] == "sgd"}
    cells = []
    for row in (row for row in rows if row["kind"] == "order ilp"):
        other = ours[row["network"], row["batch"]]
        cells.append(
            [
                title(row),
                row["batch"],
                other["ops"],
                f"{100 * (1 - row['found'] / row['least']):.1f}",
                f"{saved(other):.1f}",
                f"{row['found'] / other['ours']:.4f}",
                "yes" if row["optimal"] else "no",
                f"{row['seconds']:.2f}",
                f"{other['seconds']:.4f}",
            ]
        )
    head = ["network", "batch", "ops", "ILP saves (%)", "ours saves (%)", "peak, ILP over ours", "ILP proves it"]
    return table([*head, "ILP (s)", "ours (s)"], cells)


def place_ilp_table(rows: Sequence[Row], placed: Sequence[Row]) -> str:
    """Equation 15 in HiGHS against the default."""
    ours = {(row["network"], row["batch"]): row for row in placed if row["optimizer"] == "sgd"}
    cells = []
    for row in (row for row in rows if row["kind"] == "place ilp"):
        other = ours[row["network"], row["batch"]]
        cells.append(
            [
                title(row),
                row["batch"],
                other["buffers"],
                f"{100 * (1 - row['least'] / row['found']):.3f}",
                f"{hole(other):.3f}",
                f"{row['seconds']:.2f}",
                f"{other['seconds']:.4f}",
            ]
        )
    head = ["network", "batch", "buffers", "fragmentation, ILP (%)", "fragmentation, ours (%)", "ILP (s)", "ours (s)"]
    return table(head, cells)


def published_table(rows: Sequence[Row], ordered: Sequence[Row]) -> str:
    """The authors' code against ours."""
    ours = {(row["network"], row["batch"]): row for row in ordered if row["optimizer"] == "sgd"}
    cells = []
    for row in sorted(rows, key=lambda row: (row["batch"], list(NETWORKS).index(row["network"]))):
        other, found = ours[row["network"], row["batch"]], row["found"]
        cells.append(
            [
                title(row),
                row["batch"],
                other["ops"],
                "-" if found is None else f"{100 * (1 - found / other['pytorch']):.1f}",
                f"{saved(other):.1f}",
                "-" if found is None else f"{found / other['ours']:.3f}",
                "yes" if row["solved"] else "no",
                f"{row['seconds']:.2f}",
                f"{other['seconds']:.4f}",
            ]
        )
    head = ["network", "batch", "ops", "published code saves (%)", "ours saves (%)", "peak, published over ours"]
    return table([*head, "its ILP solved", "published code (s)", "ours (s)"], cells)


def allocator_table(rows: Sequence[Row]) -> str:
    """Time in the allocator."""
    cells = [
        [
            title(row),
            row["batch"],
            row["optimizer"],
            row["calls"],
            row["planned"],
            f"{1e3 * row['step']:.1f}",
            f"{1e3 * row['step in an arena']:.1f}",
            f"{1e6 * row['allocator']:.0f}",
            f"{1e6 * row['arena']:.0f}",
            f"{saved_minutes(row):.1f}",
        ]
        for row in rows
    ]
    head = ["network", "batch", "optimiser", "requests of a step", "served by the plan", "step (ms)", "planned (ms)"]
    head += ["in the allocator (us)", "planned (us)"]
    return table([*head, "saved in a million steps (min)"], cells)


def anytime_table(rows: Sequence[Row]) -> str:
    """When the last improvement came."""
    cells = []
    for network, batch, kind in dict.fromkeys((row["network"], row["batch"], row["kind"]) for row in rows):
        own = [row for row in rows if (row["network"], row["batch"], row["kind"]) == (network, batch, kind)]
        own.sort(key=lambda row: row["limit"])
        last = min(own, key=lambda row: row["found"])
        told = [f"{100 * (1 - min(row['least'] / row['found'], row['found'] / row['least'])):.3f}" for row in own]
        if kind.startswith("order"):
            told = [f"{100 * (1 - row['found'] / row['least']):.2f}" for row in own]
        what = "peak saved" if kind.startswith("order") else "fragmentation"
        what += " by the ILP (%)" if kind.endswith("ilp") else " (%)"
        limits = ", ".join(f"{row['limit']:g}" for row in own)
        proven = next((f"{row['seconds']:.3f} s" for row in own if row["optimal"]), "no")
        cells.append(
            [NETWORKS[network].title, batch, what, limits, ", ".join(told), f"{last['seconds']:.3f} s", proven]
        )
    return table(["network", "batch", "", "time limits (s)", "found", "the best after", "proven after"], cells)

"""The Markdown of docs/results/olla2022.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from bench.common import Row, environment_line, table
from bench.papers.olla2022_claims import GOALS_HEAD, claims, gap, goals
from bench.papers.olla2022_figures import (
    expandable_total,
    hole,
    mean,
    of,
    saved,
)
from bench.papers.olla2022_graphs import BATCHES
from bench.papers.olla2022_tables import (
    addresses_table,
    allocator_table,
    anytime_table,
    ilp_table,
    megabytes,
    orders_table,
    place_ilp_table,
    published_table,
    title,
)
from bench.papers.page import Parts, claims_section

RULES = ("LPMF", "BFS", "DFS")


def longer_sections(rows: Sequence[Row]) -> list[str]:
    """What a long time limit finds where the short one left something open."""
    left = [row for row in rows if not row["proven before"]]
    if not left:
        return []
    cells = [
        [
            title(row),
            row["batch"],
            row["optimizer"],
            f"{100 * (row['before'] / row['bound'] - 1):.3f}",
            f"{100 * (row['ours'] / row['bound'] - 1):.3f}",
            "yes" if row["optimal"] else "no",
            f"{row['seconds']:.1f}",
        ]
        for row in left
    ]
    head = ["network", "batch", "optimiser", "above the bound (%)", "with a minute (%)", "proven", "after (s)"]
    return ["## Orders that are not proven at once", table(head, cells)]


def shipped_sections(rows: Sequence[Row], environment: Row) -> list[str]:
    """The steps of today's networks at the batches they are trained with; the others by their means alone."""
    if not rows:
        return []
    captured = [row for row in rows if row["captured"]]
    others = [saved(row) for row in rows if not row["captured"]]
    cells = [
        [
            row["name"],
            row["ops"],
            megabytes(row["pytorch"]),
            megabytes(row["ours"]),
            f"{saved(row, 'inductor'):.2f}",
            f"**{saved(row):.2f}**",
            "yes" if row["optimal"] else f"{100 * gap(row):.2f} %",
            f"{1e3 * row['seconds']:.1f}",
            f"{hole(row):.3f}".rstrip("0").rstrip("."),
            f"{1e3 * row['place seconds']:.1f}",
        ]
        for row in captured
    ]
    inductor = mean([saved(row, "inductor") for row in captured])
    cells.append(["average", "", "", "", f"{inductor:.2f}", f"{mean([saved(row) for row in captured]):.2f}", *[""] * 4])
    head = ["step", "ops", "PyTorch (MB)", "ours (MB)", "Inductor saves (%)", "ours saves (%)", "proven", "ms"]
    others_told = (
        f" The other {len(others)} update all weights in one op, and save {mean(others):.2f} % on average, "
        f"{max(others):.1f} % at most."
        if others
        else ""
    )
    return [
        "## Steps that ship with memsched",
        f"{len(captured)} captured steps of today's networks, each weight with an update of its own, at batches and "
        "lengths that they are trained with. There activations are most of the memory, and they stay until the "
        f"backward in every order. Inductor's is the best of its three rules and of the given order.{others_told}"
        + (f" {environment_line(environment['shipped'])}" if "shipped" in environment else ""),
        table([*head, "fragmentation, planned (%)", "ms"], cells),
    ]


def published_sections(rows: Sequence[Row], ordered: Sequence[Row]) -> list[str]:
    """Empty where nobody had a checkout of the authors' code."""
    if not rows:
        return []
    ours = {(row["network"], row["batch"]): row["ours"] for row in ordered if row["optimizer"] == "sgd"}
    found = [row["found"] / ours[row["network"], row["batch"]] for row in rows if row["found"] is not None]
    return [
        "## The published code",
        "The authors' code (github.com/facebookresearch/OLLA) on our steps with SGD, with HiGHS instead of Gurobi "
        f"(`--published FOLDER`), on one thread, with {rows[0]['limit']:g} s of solving and an allowed gap of 0.5 %, "
        "as in its benchmark. This includes its control edges that force early updates. Its times are those of "
        f"building and solving. It found an order for {len(found)} of {len(rows)} steps, with {min(found):.3f} to "
        f"{max(found):.3f} times our peak (median {np.median(found):.3f}). Where its ILP was solved and the peak is "
        "higher, better orders are excluded by the forced edges, or by its short horizon, in which several ops share "
        "a timestep.",
        published_table(rows, ordered),
    ]


def rules_text(rows: Sequence[Row]) -> str:
    """How close the best of Inductor's rules comes, over both optimisers."""
    more = {index: row["inductor"] / row["ours"] - 1 for index, row in enumerate(rows)}
    worst = rows[max(more, key=lambda index: more[index])]
    lpmf = max(rows, key=lambda row: row["LPMF"] / row["ours"])
    equal, less = (sum(sign(value) for value in more.values()) for sign in ((0.0).__eq__, (0.0).__gt__))
    most, alone = 100 * max(more.values()), 100 * (lpmf["LPMF"] / lpmf["ours"] - 1)
    return (
        f"Over both optimisers that needs as much as our order in {equal} of {len(rows)} cases, less in {less}, and "
        f"at most {most:.2f} % more ({title(worst)}, batch {worst['batch']}, {worst['optimizer']}). LPMF alone needs "
        f"at most {alone:.2f} % more ({title(lpmf)}, batch {lpmf['batch']}, {lpmf['optimizer']}). They give no proof."
    )


def seconds_text(parts: dict[str, list[Row]]) -> str:
    """Medians and the worst, by optimiser."""
    told = []
    for optimizer, label in (("sgd", "SGD"), ("adam", "Adam")):
        for part, what in (("orders", "order"), ("addresses", "addresses")):
            seconds = [row["seconds"] for row in parts[part] if row["optimizer"] == optimizer]
            told.append(f"{what} with {label}: median {np.median(seconds):.4f} s, worst {max(seconds):.3f} s")
    return "; ".join(told) + "."


def totals_text(rows: Sequence[Row]) -> str:
    """Means against expandable segments."""
    found = {batch: mean([expandable_total(row) for row in of(rows, batch)]) for batch in BATCHES}
    return ", ".join(f"{value:.1f} % at batch {batch}" for batch, value in found.items())


def batches(rows: Sequence[Row], optimizer: str, draw: Callable[[Sequence[Row]], str]) -> list[str]:
    """A table a batch."""
    found = []
    for batch in BATCHES:
        own = of(rows, batch, optimizer)
        if own:
            found += [f"Batch {batch}:", draw(own)]
    return found


def introduction(environment: Row) -> list[str]:
    """What was run, where, and what differs."""
    packages = ", ".join(f"{name} {environment[name]}" for name in ("torch", "torchvision", "transformers"))
    return [
        "# OLLA, 2022",
        "Steiner, Elhoushi, Kahn, Hegarty: OLLA: Optimizing the Lifetime and Location of Arrays to Reduce the Memory "
        "Usage of Neural Networks. Written by `python -m bench.papers.olla2022` for training steps captured from "
        "PyTorch without data, op by op, with the networks, inputs, loss and optimiser of the authors' published "
        "benchmark. Peaks are in bytes, resident bytes included, and follow from the order alone. points.json beside "
        "the pictures has every number.",
        environment_line(environment)
        + f" Networks from {packages}. Seconds are wall time of one thread, the least of "
        "three calls where a call takes less than half a second. They depend on the machine; so do orders that are not "
        "proven in time: a call has {:g} s for an order and {:g} s for addresses, to end within the 1 s and 2 s of our "
        "goals.".format(*environment["limits"]),
        "What differs from the paper. The networks are those of today's packages, not of PyTorch 1.11; XLM-R is that "
        "of transformers, with attention written out. The paper's graphs come from torch.fx, where views are ops and "
        "a write in place makes a new tensor. Our graphs have storages: a view is not an op, and a write in place "
        "belongs to the op that made the storage, unless the storage is read in between. So ours have fewer ops. "
        "Control edges keep each update after all readers of its weight, and keep running statistics and random "
        "numbers in order. There is no GPU: the ops are those of the CPU, and PyTorch's allocator is **emulated**, "
        "with its rounding, pools, segments, best fit, splitting and joining, on the requests of five steps, after "
        "all weights and states have been allocated one by one. Memory that kernels allocate themselves is not seen. "
        "The paper's text does not give the numbers in its figures. Three VGGs and two Transformers count as five "
        "networks.",
    ]


def report(parts: Parts, drawn: list[tuple[str, str, str]], environment: Row) -> str:
    """Claims, tables, pictures."""
    ordered, placed = parts["orders"], parts["addresses"]
    sections = [
        *introduction(environment),
        *claims_section(claims(parts)),
        "## Goals",
        "Over both batches and both optimisers.",
        table(GOALS_HEAD, goals(parts)),
        "## Order, SGD (Figures 7 and 9)",
        "LPMF, BFS and DFS are the three heuristics of PyTorch's Inductor, reimplemented on our graphs. Inductor "
        f"takes the best of them and of the given order. {rules_text(ordered)}",
        *batches(ordered, "sgd", orders_table),
        "## Order, Adam",
        "Each parameter has its own chain of about a dozen small ops, as with foreach=False.",
        *batches(ordered, "adam", orders_table),
        "## Addresses and both together, SGD (Figures 8, 11 and 13)",
        "Reserved are the bytes that the emulated allocator holds for PyTorch's order, weights included. "
        "Fragmentation is (MR - RS) / MR at the first peak of the reserved bytes MR, as in the paper. The next "
        "column relates the same peak to the most bytes in use. The one after it does so for the allocator with "
        "expandable_segments, an option that the paper's version did not have; against that, order and addresses "
        f"save {totals_text(placed)}. Planned fragmentation does not count resident bytes, which makes it the "
        'stricter measure. "By size" is the greedy placement of many runtimes: the largest buffer first, each as low '
        "as it fits.",
        *batches(placed, "sgd", addresses_table),
        "## Addresses and both together, Adam",
        *batches(placed, "adam", addresses_table),
        *shipped_sections(parts["shipped"], environment),
        "## Planning time (Figures 9 and 11)",
        seconds_text(parts),
        "## Time in the allocator (Figure 14)",
        "Real training steps on the CPU with their optimisers, on one thread: median time that a step spends in "
        "PyTorch's own allocator, and in `memsched.torch.Arena`, which serves planned addresses from one block. The "
        "paper measured CUDA's caching allocator instead."
        + (f" {environment_line(environment['allocating'])}" if "allocating" in environment else ""),
        allocator_table(parts["allocator"]),
        *longer_sections(parts["longer"]),
        "## The ILP",
        'Equation 14 in HiGHS instead of Gurobi, `memsched.order(graph, method="ilp")`, on the small steps. It '
        "starts from the order of a beam search; the program looks for better orders and gives the bound.",
        ilp_table(parts["ilp"], ordered),
        'Equation 15, `memsched.place(buffers, method="ilp")`, on our order of the same steps:',
        place_ilp_table(parts["ilp"], placed),
        *published_sections(parts["published"], ordered),
        "## Against time (Figures 10 and 12)",
        "What calls with growing time limits find.",
        anytime_table(parts["anytime"]),
        "## Pictures",
    ]
    sections += [f"### {title} (Figures: {number})\n\n![{title}](olla2022/{file})" for file, title, number in drawn]
    return "\n\n".join(sections) + "\n"

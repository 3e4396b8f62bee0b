"""The pictures of docs/results/olla2022.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from bench.common import Row
from bench.papers.europar2020 import BOUND, STYLES
from bench.papers.modnn2018_figures import plotter, save
from bench.papers.olla2022_graphs import BATCHES, NETWORKS

OURS, ALLOCATOR, INDUCTOR, ILP = "memsched", "PyTorch's allocator", "Inductor's rules", "ILP (HiGHS)"
COLOURS = {
    OURS: STYLES["dynprog"]["color"],
    INDUCTOR: STYLES["greedy"]["color"],
    ALLOCATOR: STYLES["vdnn"]["color"],
    "PyTorch's allocator, against the most in use": STYLES["tflms"]["color"],
    "our order, PyTorch's allocator": STYLES["greedy"]["color"],
    "order": STYLES["dynprog"]["color"],
    "addresses": STYLES["autoswap"]["color"],
    ILP: STYLES["vdnn"]["color"],
}
Bars = Mapping[str, Callable[[Row], float]]


def saved(row: Row, name: str = "ours") -> float:
    """Percent of the peak of PyTorch's order."""
    return 100 * (1 - float(row[name]) / float(row["pytorch"]))


def fragmentation(row: Row) -> float:
    """Of the allocator, in percent: (MR - RS) / MR when the reserved bytes MR first are at their peak."""
    return 100 * (1 - float(row["resident set"]) / float(row["reserved"]))


def slack(row: Row) -> float:
    """Of the allocator, in percent: what it reserves beyond the most bytes in use."""
    return 100 * (1 - float(row["in use"]) / float(row["reserved"]))


def expandable(row: Row) -> float:
    """`slack` with expandable segments."""
    return 100 * (1 - float(row["in use"]) / float(row["expandable"]))


def expandable_total(row: Row) -> float:
    """`total` against an allocator with expandable segments."""
    return 100 * (1 - float(row["resident"] + row["height"]) / float(row["expandable"]))


def hole(row: Row) -> float:
    """Of planned addresses, in percent of their height; resident bytes are in neither."""
    return 100 * (1 - float(row["load"]) / float(row["height"])) if row["height"] else 0.0


def total(row: Row) -> float:
    """Percent of what the allocator reserves that order and addresses save together."""
    return 100 * (1 - float(row["resident"] + row["height"]) / float(row["reserved"]))


def order_total(row: Row) -> float:
    """Percent of what the allocator reserves that our order alone saves, with the same allocator."""
    return 100 * (1 - float(row["reserved, ordered"]) / float(row["reserved"]))


def of(rows: Sequence[Row], batch: int, optimizer: str = "sgd") -> list[Row]:
    return [row for row in rows if row["batch"] == batch and row["optimizer"] == optimizer]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def bars(path: Path, title: str, y_label: str, rows: Sequence[Row], heights: Bars, *, log: bool = False) -> None:
    """A panel a batch, a group of bars a network."""
    pyplot = plotter()
    picture, grid = pyplot.subplots(2, 1, figsize=(10, 6.2), squeeze=False, layout="constrained")
    for axes, batch in zip(grid.flat, BATCHES, strict=True):
        own = of(rows, batch)
        width = 0.8 / len(heights)
        for place, (label, height) in enumerate(heights.items()):
            values = [height(row) for row in own]
            where = [k + (place - (len(heights) - 1) / 2) * width for k in range(len(own))]
            drawn = axes.bar(where, values, width, label=label, color=COLOURS[label])
            form = "{:.2g}" if log else "{:.1f}"
            axes.bar_label(drawn, [form.format(value + 0.0) for value in values], fontsize=5, padding=1)
        axes.set_xticks(range(len(own)), [NETWORKS[row["network"]].title.replace(", ", "\n") for row in own])
        axes.tick_params(labelsize=6)
        axes.set_yscale("log" if log else "linear")
        axes.margins(x=0.01, y=0.1)
        axes.set_title(f"batch {batch}", fontsize=8, pad=3)
        axes.grid(axis="y", alpha=0.25, linewidth=0.5)
    handles, labels = grid.flat[0].get_legend_handles_labels()
    if len(heights) > 1:
        picture.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=7, frameon=False)
    picture.supylabel(y_label, fontsize=8)
    picture.suptitle(title, fontsize=10)
    save(picture, path)


def curves(axes: Any, rows: Sequence[Row], value: Callable[[Row], float], best: Callable[..., float]) -> None:
    """The best value so far against seconds."""
    for kind in dict.fromkeys(row["kind"] for row in rows):
        label, marker = (ILP, "s") if kind.endswith("ilp") else (OURS, "o")
        own = sorted((row for row in rows if row["kind"] == kind), key=lambda row: row["seconds"])
        xs, ys = [max(row["seconds"], 1e-3) for row in own], accumulate(map(value, own), best)
        axes.plot(xs, list(ys), marker=marker, markersize=3.5, color=COLOURS[label], label=label)


def anytime(path: Path, rows: Sequence[Row]) -> None:
    """Figures 10 and 12."""
    pyplot = plotter()
    panels = list(dict.fromkeys((row["kind"].startswith("place"), row["network"], row["batch"]) for row in rows))
    columns = 2
    count = -(-len(panels) // columns)
    picture, grid = pyplot.subplots(count, columns, figsize=(8, 2.3 * count + 0.6), squeeze=False, layout="constrained")
    for axes, (places, network, batch) in zip(grid.flat, sorted(panels, key=lambda panel: panel[0]), strict=False):
        own = [row for row in rows if (row["network"], row["batch"]) == (network, batch)]
        own = [row for row in own if row["kind"].startswith("place") == places]
        if places:
            curves(axes, own, lambda row: 100 * (1 - row["least"] / row["found"]), min)
        else:
            curves(axes, own, lambda row: 100 * (1 - row["found"] / row["least"]), max)
            best = max(row["bound"] for row in own)
            axes.axhline(100 * (1 - best / own[0]["least"]), label="proven bound", **BOUND)
        what = "fragmentation (%)" if places else "peak saved (%)"
        axes.set_title(f"{NETWORKS[network].title}, batch {batch}: {what}", fontsize=8, pad=3)
        axes.set_xscale("log")
        axes.set_xlim(8e-4, 300)
        axes.set_ylim(min(0.0, axes.get_ylim()[0]), max(0.1, 1.05 * axes.get_ylim()[1]))
        axes.set_xlabel("seconds", fontsize=7)
        axes.tick_params(labelsize=7)
        axes.grid(alpha=0.25, linewidth=0.5)
    named = {
        label: handle for axes in grid.flat for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    picture.legend(named.values(), named.keys(), loc="outside lower center", ncols=4, fontsize=7, frameon=False)
    save(picture, path)


def pictures(parts: dict[str, list[Row]], folder: Path) -> list[tuple[str, str, str]]:
    """Draw everything; (file, what it shows, figures of the paper)."""
    folder.mkdir(parents=True, exist_ok=True)
    ordered, placed = parts["orders"], parts["addresses"]
    seconds = {(row["network"], row["batch"], row["optimizer"]): row["seconds"] for row in ordered}
    bars(
        folder / "order.png",
        "What another order of the ops saves of the peak, SGD",
        "percent of the peak of PyTorch's order",
        ordered,
        {OURS: saved, INDUCTOR: lambda row: saved(row, "inductor")},
    )
    bars(
        folder / "fragmentation.png",
        "Fragmentation, SGD",
        "percent",
        placed,
        {ALLOCATOR: fragmentation, "PyTorch's allocator, against the most in use": slack, OURS: hole},
    )
    bars(
        folder / "total.png",
        "What order and addresses save together, SGD",
        "percent of what PyTorch's allocator reserves",
        placed,
        {OURS: total, "our order, PyTorch's allocator": order_total},
    )
    bars(
        folder / "seconds.png",
        "Planning time, SGD",
        "seconds",
        placed,
        {
            "order": lambda row: seconds[row["network"], row["batch"], row["optimizer"]],
            "addresses": lambda row: float(row["seconds"]),
        },
        log=True,
    )
    anytime(folder / "anytime.png", parts["anytime"])
    return [
        ("order.png", "What another order saves", "7"),
        ("fragmentation.png", "Fragmentation", "8"),
        ("total.png", "What order and addresses save together", "13"),
        ("seconds.png", "Planning time", "9 and 11"),
        ("anytime.png", "The best so far against time", "10 and 12"),
    ]

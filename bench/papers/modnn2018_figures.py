"""Small pictures for the papers on graphs: panels of lines, and bars."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.common import Row
from bench.papers.europar2020 import STYLES

GIB = 2**30
Curve = tuple[Sequence[float], Sequence[float]]
Panel = tuple[str, Mapping[str, Curve]]

LINES: dict[str, dict[str, Any]] = {
    "moDNN": STYLES["dynprog"],
    "moDNN, more rounds": {**STYLES["offload"], "linestyle": (0, (1, 1))},
    "vDNN+": STYLES["greedy"],
    "vDNN": STYLES["vdnn"],
}
BARS = ("moDNN", "vDNN+", "vDNN")


def line_panels(
    path: Path,
    title: str,
    panels: Sequence[Panel],
    styles: Mapping[str, dict[str, Any]],
    x_label: str,
    y_label: str,
    *,
    columns: int = 3,
    log_x: Sequence[float] = (),
    tops: Sequence[float] = (),
    from_zero: bool = False,
) -> None:
    """One panel a name. `log_x`: ticks of a logarithmic axis; `tops`: where each y axis ends, below 1 its start."""
    pyplot = plotter()
    columns = min(columns, len(panels))
    count = -(-len(panels) // columns)
    size = (max(3.1 * columns, 6.5), 2.6 * count + 0.9)
    picture, grid = pyplot.subplots(count, columns, figsize=size, sharex=True, squeeze=False, layout="constrained")
    named: dict[str, Any] = {}
    for place, axes in enumerate(grid.flat):
        if place >= len(panels):
            axes.set_visible(False)
            continue
        name, curves = panels[place]
        for label, (xs, ys) in curves.items():
            (named[label],) = axes.plot(xs, ys, **{"label": label, "marker": "o", "markersize": 2.2, **styles[label]})
        if log_x:
            axes.set_xscale("log")
            axes.set_xticks(log_x, [f"{tick:g}" for tick in log_x])
            axes.minorticks_off()
        if tops:
            axes.set_ylim(1 - 0.05 * (tops[place] - 1), tops[place])
        if from_zero:
            axes.set_ylim(0, 1.04 * axes.get_ylim()[1])
        axes.set_title(name, fontsize=8, pad=3)
        axes.tick_params(labelsize=7, labelbottom=True)
        axes.grid(alpha=0.25, linewidth=0.5)
    order = [label for label in styles if label in named]
    picture.legend(
        handles=[named[label] for label in order], loc="outside lower center", ncols=4, fontsize=7, frameon=False
    )
    for place, axes in enumerate(grid.flat):
        if place + columns >= len(panels):
            axes.set_xlabel(x_label, fontsize=8)
    picture.supylabel(y_label, fontsize=8)
    picture.suptitle(title, fontsize=10)
    save(picture, path)


def bar_panels(
    path: Path,
    title: str,
    panels: Sequence[tuple[str, Mapping[str, Sequence[float]]]],
    names: Sequence[str],
    *,
    log: bool = False,
    columns: int = 2,
) -> None:
    """A panel a quantity (its title is what is counted), a group of bars a name, a colour a label."""
    pyplot = plotter()
    columns = min(columns, len(panels))
    count = -(-len(panels) // columns)
    size = (4.6 * columns, 2.6 * count + 0.5)
    picture, grid = pyplot.subplots(count, columns, figsize=size, squeeze=False, layout="constrained")
    colours = [STYLES[name]["color"] for name in ("dynprog", "greedy", "vdnn", "autoswap", "tflms", "offload")]
    for axes, (what, groups) in zip(grid.flat, panels, strict=False):
        width = 0.8 / len(groups)
        for place, (label, heights) in enumerate(groups.items()):
            where = [k + (place - (len(groups) - 1) / 2) * width for k in range(len(names))]
            bars = axes.bar(where, heights, width, label=label, color=colours[place])
            texts = ["" if math.isnan(height) else f"{height:.3g}" for height in heights]
            axes.bar_label(bars, texts, fontsize=5.5, padding=1)
        axes.set_xticks(range(len(names)), names, fontsize=7)
        axes.tick_params(axis="y", labelsize=7)
        if log:
            axes.set_yscale("log")
        axes.margins(y=0.12)
        axes.set_title(what, fontsize=8, pad=3)
    handles, labels = grid.flat[0].get_legend_handles_labels()
    picture.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=7, frameon=False)
    picture.suptitle(title, fontsize=10)
    save(picture, path)


def plotter() -> Any:
    """Pyplot without a screen."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def save(picture: Any, path: Path) -> None:
    """As a PNG of few colours."""
    from PIL import Image

    drawn = io.BytesIO()
    picture.savefig(drawn, dpi=100)
    plotter().close(picture)
    Image.open(drawn).convert("RGB").quantize(256).save(path, optimize=True)


def curves_of(rows: list[Row], x: Callable[[Row], float], names: Sequence[str]) -> dict[str, Curve]:
    """Time over ideal of each planner, a gap where it has no plan."""
    return {
        name: (
            [x(row) for row in rows],
            [math.nan if row[name] is None else row[name] / row["ideal"] for row in rows],
        )
        for name in names
    }


def pictures(parts: dict[str, list[Row]], folder: Path) -> list[tuple[str, str, str]]:
    """Draw everything; (file, what it shows, figure of the paper)."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [row["network"] for row in parts["memory"]]
    sizes = {
        label: [row[key] / 1e9 for row in parts["memory"]]
        for label, key in (("all data at once", "everything"), ("plain run", "peak"), ("eq. (2)", "least"))
    }
    bar_panels(folder / "memory.png", "Memory requirement", [("GB", sizes)], names, log=True)
    main = {(row["network"], row["planner"]): row for row in parts["main"]}
    plans = {name: [main[network, name] for network in names] for name in BARS}
    overheads = {name: [above_ideal(row) for row in rows] for name, rows in plans.items()}
    moved = {name: [gigabytes(row) for row in rows] for name, rows in plans.items()}
    panels = [("time above the ideal case (%)", overheads), ("GB moved, out and in", moved)]
    bar_panels(folder / "main.png", "12 GiB, 10 GB/s", panels, names)
    budgets = []
    tops = []
    for network in names:
        rows = sorted((row for row in parts["budgets"] if row["network"] == network), key=lambda row: row["memory"])
        budgets.append((network, curves_of(rows, lambda row: row["memory"] / GIB, list(LINES))))
        inner = [row[name] / row["ideal"] for row in rows for name in LINES if row[name] and row["memory"] >= 2.5 * GIB]
        tops.append(1.05 + 1.3 * (max(inner, default=1.1) - 1))
    line_panels(
        folder / "budgets.png",
        "Time over the ideal case against memory",
        budgets,
        LINES,
        "memory (GiB)",
        "time / ideal",
        log_x=(0.25, 0.5, 1, 2, 4, 8, 16),
        tops=tops,
    )
    links = []
    for memory in sorted({row["memory"] for row in parts["links"]}, reverse=True):
        rows = [row for row in parts["links"] if row["memory"] == memory]
        links.append((f"{memory / GIB:g} GiB", mean_overheads(rows)))
    line_panels(
        folder / "links.png",
        "Mean overhead of all networks against the speed of the link",
        links,
        LINES,
        "GB/s",
        "overhead (%)",
        columns=2,
    )
    speeds = []
    for link in sorted({row["link"] for row in parts["gpus"]}, reverse=True):
        own = {row["network"]: row for row in parts["gpus"] if row["link"] == link}
        bars = {"ideal case on one GPU": [1.0] * len(names)}
        for label, keys in (("moDNN on one GPU", ("one",)), ("moDNN on two GPUs", ("two", "exchange"))):
            bars[label] = [own[name]["ideal"] / sum(own[name][key] for key in keys) for name in names]
        speeds.append((f"{link / 1e9:g} GB/s", bars))
    bar_panels(folder / "gpus.png", "Speed over the ideal case on one GPU", speeds, names)
    return [
        ("memory.png", "Memory requirement", "6"),
        ("main.png", "Overhead and bytes moved with 12 GiB", "7"),
        ("budgets.png", "Time against memory", "8"),
        ("gpus.png", "Two GPUs that share a bus", "9"),
        ("links.png", "Overhead against the speed of the link", "none in the paper"),
    ]


def above_ideal(row: Row) -> float:
    """Percent; NaN without a plan."""
    return math.nan if row["time"] is None else 100 * (row["time"] / row["ideal"] - 1)


def gigabytes(row: Row) -> float:
    """Out and in; NaN without a plan."""
    return math.nan if row["time"] is None else (row["bytes_out"] + row["bytes_in"]) / 1e9


def mean_overheads(rows: list[Row]) -> dict[str, Curve]:
    """Percent over the networks by link; a gap where some network has no plan."""
    links = sorted({row["link"] for row in rows})
    found: dict[str, Curve] = {}
    for name in LINES:
        heights = []
        for link in links:
            own = [row for row in rows if row["link"] == link]
            whole = all(row[name] is not None for row in own)
            heights.append(100 * (sum(row[name] / row["ideal"] for row in own) / len(own) - 1) if whole else math.nan)
        found[name] = ([link / 1e9 for link in links], heights)
    return found

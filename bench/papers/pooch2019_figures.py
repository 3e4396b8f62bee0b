"""The pictures of docs/results/pooch2019.md."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from bench.common import Row
from bench.papers.europar2020 import BOUND, STYLES
from bench.papers.modnn2018_figures import Curve, bar_panels, line_panels, plotter, save

STEPS = ("w/o scheduling", "swap-all", "swap-opt", "PoocH")
BASELINES = ("PoocH", "swap-opt", "AUTOSWAP", "TFLMS", "vDNN")
FOREIGN = "POWER9 classes"
MEMORY = 16e9  # of the GPU
LINES: dict[str, dict[str, Any]] = {
    "bound": {**BOUND, "markersize": 0, "label": "compute bound"},
    "in-core": {"color": "#D55E00", "linewidth": 0, "markersize": 5, "marker": "s"},
    "PoocH": STYLES["dynprog"],
    "SuperNeurons": STYLES["greedy"],
    "swap-opt": STYLES["autoswap"],
    "swap-all": STYLES["tflms"],
    FOREIGN: STYLES["offload"],
    "AUTOSWAP": STYLES["greedy"],
    "TFLMS": STYLES["tflms"],
    "vDNN": STYLES["vdnn"],
}


def link_name(link: float) -> str:
    """The machine: of the two nominal speeds, and of what is reached of them."""
    return f"{'x86' if link < 30e9 else 'POWER9'}, {link / 1e9:g} GB/s"


def size_name(row: Row) -> str:
    return "x".join(str(one) for one in row["size"])


def links_of(rows: list[Row]) -> list[float]:
    return sorted({row["link"] for row in rows})


def own_rows(rows: list[Row], network: str, link: float) -> list[Row]:
    return [row for row in rows if row["network"] == network and row["link"] == link]


def speed(row: Row, name: str) -> float:
    """Images (clips) a second; NaN without a plan."""
    return math.nan if row[name] is None else row["batch"] / row[name]


def lines_of(rows: list[Row], names: tuple[str, ...]) -> dict[str, Curve]:
    """Images a second against the batch, a curve a planner."""
    batches = [row["batch"] for row in rows]
    return {name: (batches, [speed(row, name) for row in rows]) for name in ("bound", *names)}


def shares_of(rows: list[Row], names: tuple[str, ...]) -> dict[str, Curve]:
    """Percent of the compute bound's speed against the memory of the plain run."""
    sizes = [row["memory"] / 1e9 for row in rows]
    return {name: (sizes, [100 * speed(row, name) / speed(row, "bound") for row in rows]) for name in ("bound", *names)}


def against_size(parts: dict[str, list[Row]], network: str, path: Path, title: str) -> None:
    """Figures 17 to 22: a panel a link."""
    panels = []
    names = ("in-core", "PoocH", "SuperNeurons", "swap-opt", "swap-all")
    clips = network == "resnext101_3d"
    for link in links_of(parts["speeds"]):
        curves = (shares_of if clips else lines_of)(own_rows(parts["speeds"], network, link), names)
        foreign = [row for row in parts["crossed"] if row["own"] == link]
        if network == "resnet50" and foreign:
            curves[FOREIGN] = ([row["batch"] for row in foreign], [speed(row, "time") for row in foreign])
        panels.append((link_name(link), curves))
    x_label, y_label = "batch", "images / s"
    if clips:
        x_label, y_label = "memory of the plain run (GB)", "speed (% of the compute bound)"
    line_panels(path, title, panels, LINES, x_label, y_label, columns=2, from_zero=True)


def memory_bars(parts: dict[str, list[Row]], path: Path) -> None:
    """Figures 3 and 4: what the plain run holds, and the memory of the GPU."""
    panels = (("resnet50", "ResNet-50", "batch"), ("resnext101_3d", "ResNeXt-101 (3D), one clip", "size of the clip"))
    link = links_of(parts["speeds"])[0]  # the plain run uses none
    picture, grid = plotter().subplots(1, len(panels), figsize=(9.2, 3.1), layout="constrained")
    for axes, (network, title, label) in zip(grid, panels, strict=True):
        rows = own_rows(parts["speeds"], network, link)
        held = [row["memory"] / 1e9 for row in rows]
        bars = axes.bar([size_name(row) for row in rows], held, color=STYLES["dynprog"]["color"], width=0.7)
        axes.bar_label(bars, [f"{one:.3g}" for one in held], fontsize=7, padding=1)
        axes.axhline(MEMORY / 1e9, color="#D55E00", linestyle="--", linewidth=1, label="memory of the GPU")
        axes.tick_params(labelsize=7)
        axes.tick_params(axis="x", labelrotation=30)
        axes.set_title(title, fontsize=9)
        axes.set_xlabel(label, fontsize=8)
        axes.set_ylabel("GB", fontsize=8)
        axes.margins(y=0.12)
    grid[0].legend(fontsize=7, frameon=False, loc="upper left")
    save(picture, path)


def pictures(parts: dict[str, list[Row]], folder: Path) -> list[tuple[str, str, str]]:
    """Draw everything; (file, what it shows, figures of the paper)."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = parts["speeds"]
    shown = [("resnet50", [256]), ("resnet50", [512]), ("resnet50", [640]), ("alexnet", [4096])]
    groups = []
    for link in links_of(rows):
        own = [row for wanted in shown for row in own_rows(rows, wanted[0], link) if row["size"] == wanted[1]]
        ratios = {name: [row["w/o scheduling"] / row[name] for row in own] for name in STEPS}
        groups.append((f"{link_name(link)}: speed over swap-all w/o scheduling", ratios))
        names = [f"{row['network']} {size_name(row)}" for row in own]
    bar_panels(folder / "steps.png", "What each step of PoocH brings", groups, names, columns=2)
    against_size(parts, "resnet50", folder / "resnet50.png", "ResNet-50")
    against_size(parts, "alexnet", folder / "alexnet.png", "AlexNet")
    against_size(parts, "resnext101_3d", folder / "resnext101_3d.png", "ResNeXt-101 (3D), one clip")
    panels = [(link_name(link), lines_of(own_rows(rows, "resnet50", link), BASELINES)) for link in links_of(rows)]
    title = "ResNet-50, plans that only swap, and PoocH"
    line_panels(folder / "baselines.png", title, panels, LINES, "batch", "images / s", columns=2, from_zero=True)
    memory_bars(parts, folder / "memory.png")
    return [
        ("memory.png", "What the plain run needs", "3 and 4"),
        ("steps.png", "What each step brings", "15 and 16"),
        ("resnet50.png", "ResNet-50 against the batch", "17 and 18"),
        ("alexnet.png", "AlexNet against the batch", "19 and 20"),
        ("resnext101_3d.png", "ResNeXt-101 (3D) against the size of a clip", "21 and 22"),
        ("baselines.png", "The planners of the Euro-Par 2020 paper on the same graphs", "none in the paper"),
    ]

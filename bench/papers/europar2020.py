"""Figures 5 to 19 of Beaumont, Eyraud-Dubois, Shilova, Euro-Par 2020.

The chains are captured with PyTorch; those of --quick are shipped.

python -m bench.papers.europar2020                 # about an hour; resumes from build/bench/europar2020.jsonl
python -m bench.papers.europar2020 --quick --out /tmp/europar2020
"""

from __future__ import annotations

import argparse
import io
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from bench.common import Cache, Row, bandwidth, budget
from bench.papers.europar2020_chains import NETWORKS, captured, names, parts_of
from bench.papers.europar2020_claims import bound, report
from bench.papers.page import Parts, arguments, publish

import memsched as ms
from memsched import _core
from memsched.problems.fluid import fluid_chain, prefix_set

PLANNERS = ("dynprog", "greedy", "vdnn", "autoswap", "tflms", "offload")
STYLES: dict[str, dict[str, Any]] = {  # Okabe and Ito's colours, told apart without colour by dashes
    "dynprog": {"color": "#0072B2", "linewidth": 1.8},
    "greedy": {"color": "#E69F00", "linewidth": 1.4, "linestyle": (0, (5, 1))},
    "vdnn": {"color": "#D55E00", "linewidth": 1.2, "linestyle": (0, (1, 1))},
    "autoswap": {"color": "#009E73", "linewidth": 1.2, "linestyle": (0, (3, 1, 1, 1))},
    "tflms": {"color": "#CC79A7", "linewidth": 2.0, "linestyle": (0, (2, 1)), "zorder": 3},
    "offload": {"color": "#000000", "linewidth": 1.4},
}
BOUND = {"color": "#C4C4C4", "linewidth": 4.0, "zorder": 1.5}
COLUMNS = ("profile", "network", "batch", "percent", "memory", "compute", "transfer", "fractional")
HASHED = (10.0, 30.0, 50.0, 70.0, 90.0)  # percent of memory at which the paper's hash tables run, too


def able(chain: ms.Chain, device: ms.Device) -> list[str]:
    """The planners for which the memory is enough."""
    return [name for name in PLANNERS if device.memory >= ms.min_memory(chain, name)]


def point(chain: ms.Chain, profile: str, percent: float, time_limit: float) -> Row:
    """Makespans (seconds) of all planners at one memory limit; None where a planner has no plan."""
    device = ms.Device(budget(chain, percent), bandwidth(chain))
    network, _, batch = parts_of(profile)
    compute, transfer, fractional = _core.graph_bounds(ms.to_graph(chain), device, device.memory)
    row: Row = dict(
        zip(
            COLUMNS,
            (profile, network, batch, percent, device.memory, compute, transfer, fractional),
            strict=True,
        )
    )
    found = ms.compare(chain, device=device, planners=able(chain, device), time_limit=time_limit)
    for name in PLANNERS:
        outcome = found.get(name)
        row[name] = outcome.makespan if isinstance(outcome, ms.Result) else None
    dynprog = found.get("dynprog")
    row["dynprog_estimate"] = dynprog.estimate if isinstance(dynprog, ms.Result) else None
    row["greedy_estimate"] = greedy_estimate(chain, device)
    return row


def greedy_estimate(chain: ms.Chain, device: ms.Device) -> float | None:
    """What GREEDY's set is worth in DYNPROG's own model (seconds); None where it does not fit there."""
    instance = fluid_chain(chain, device)
    chosen = prefix_set(instance, ms.peak_memory(chain) - device.memory)
    value = instance.exact().makespan(chosen) / instance.bandwidth
    return value if math.isfinite(value) else None


def ties(chain: ms.Chain, profile: str, percent: float, hashed: bool) -> Row:
    """DYNPROG's makespans (seconds) with the sets that its dynamic program comes upon; None without a plan or a run."""
    device = ms.Device(budget(chain, percent), bandwidth(chain))
    row: Row = {"profile": profile, "percent": percent, "paper": None, "hash": None, "hash slots": None}
    if "dynprog" not in able(chain, device):
        return row
    row["paper"] = ms.dynprog(chain, device=device, ties="paper").makespan
    if hashed:
        found = ms.dynprog(chain, device=device, method="hash")
        row["hash"], row["hash slots"] = found.makespan, found.params["slots_used"]
    return row


def work_of(
    part: str,
    load: Callable[[str], ms.Chain],
    profiles: Sequence[str],
    limits: list[float],
    time_limit: float,
    hashed: Sequence[float],
) -> Iterator[tuple[str, Callable[[], Row]]]:
    """Keys of the cache and what computes their rows."""

    def points_of(profile: str, percent: float) -> Row:
        return point(load(profile), profile, percent, time_limit)

    def ties_of(profile: str, percent: float) -> Row:
        return ties(load(profile), profile, percent, percent in hashed)

    for profile in profiles:
        for percent in limits:
            if part == "points":
                yield f"points {profile} {percent} {time_limit}", partial(points_of, profile, percent)
            else:
                yield f"ties {profile} {percent}", partial(ties_of, profile, percent)


def curve(rows: list[Row], planner: str, value: Callable[[Row, float], float]) -> tuple[list[float], list[float]]:
    """Points of one planner, a gap where it has no plan."""
    heights = [float("nan") if row[planner] is None else value(row, row[planner]) for row in rows]
    return [row["percent"] for row in rows], heights


def ratio_panel(axes: Any, rows: list[Row], top: float) -> None:
    """Makespan over LB of all planners; the fractional bound over LB as a grey band."""

    def value(row: Row, makespan: float) -> float:
        return makespan / bound(row)

    for planner in PLANNERS:
        axes.plot(*curve(rows, planner, value), label=planner, **STYLES[planner])
    axes.plot(*curve(rows, "fractional", value), label="fractional bound", **BOUND)
    axes.set_ylim(0.99, top)
    axes.set_xlim(0, 100)


def throughput_panel(axes: Any, rows: list[Row]) -> None:
    """Images a second of all planners; the most that LB allows as a grey band."""

    def value(row: Row, makespan: float) -> float:
        return float(row["batch"] / makespan)

    for planner in PLANNERS:
        axes.plot(*curve(rows, planner, value), label=planner, **STYLES[planner])
    axes.plot([row["percent"] for row in rows], [row["batch"] / bound(row) for row in rows], label="LB", **BOUND)
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 1.05 * max(row["batch"] / bound(row) for row in rows))


def figure(
    path: Path, title: str, panels: list[tuple[str, list[Row]]], columns: int, y_label: str, draw: Callable[..., None]
) -> None:
    """One picture: a panel a profile, one legend below."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from PIL import Image

    columns = min(columns, len(panels))
    count = -(-len(panels) // columns)
    height = 2.1 * count + 1.2
    picture, grid = pyplot.subplots(
        count, columns, figsize=(max(2.7 * columns, 6.5), height), sharex=True, squeeze=False, layout="constrained"
    )
    for place, axes in enumerate(grid.flat):
        if place >= len(panels):
            axes.set_visible(False)
            continue
        name, rows = panels[place]
        draw(axes, rows)
        axes.set_title(name, fontsize=8, pad=3)
        axes.tick_params(labelsize=7)
        axes.grid(alpha=0.25, linewidth=0.5)
        axes.set_xticks(range(0, 101, 25))
    handles, labels = grid.flat[0].get_legend_handles_labels()
    picture.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=7, frameon=False)
    for axes in grid[-1]:
        axes.set_xlabel("memory limit (%)", fontsize=8)
    picture.supylabel(y_label, fontsize=8)
    picture.suptitle(title, fontsize=10)
    drawn = io.BytesIO()
    picture.savefig(drawn, dpi=90)
    pyplot.close(picture)
    pixels = np.asarray(Image.open(drawn).convert("RGB"))
    seen, index = np.unique(pixels.reshape(-1, 3), axis=0, return_inverse=True)
    colours = palette()
    nearest = np.abs(seen[:, None].astype(int) - colours).sum(axis=2).argmin(axis=1)
    few = Image.fromarray(nearest[index].reshape(pixels.shape[:2]).astype(np.uint8)).convert("P")
    few.putpalette(colours.ravel().tolist())
    few.save(path, optimize=True)


@cache
def palette() -> npt.NDArray[np.int64]:
    """The lines' colours blended with white, shape [.., 3]: small pictures whose colours stay what they are."""
    bases = [style["color"] for style in (*STYLES.values(), BOUND)]
    lines = np.array([[int(base[place : place + 2], 16) for place in (1, 3, 5)] for base in bases])
    blends = 255 + np.linspace(0, 1, 33)[:, None, None] * (lines - 255)
    return np.round(blends.reshape(-1, 3)).astype(np.int64)


def top_of(panels: list[tuple[str, list[Row]]]) -> float:
    """Where a ratio axis ends: above all planners but VDNN and TFLMS, which may leave the picture."""
    shown = ("dynprog", "greedy", "autoswap", "offload")
    ratios = [row[p] / bound(row) for _, rows in panels for row in rows for p in shown if row[p] is not None]
    return max(1.1, max(ratios) + 0.02)


def pictures(rows: list[Row], folder: Path) -> list[tuple[str, str, str]]:
    """Draw everything; (file, what it shows, figures of the paper)."""
    folder.mkdir(parents=True, exist_ok=True)
    of_profile: dict[str, list[Row]] = {}
    for row in rows:
        of_profile.setdefault(row["profile"], []).append(row)
    drawn = []

    def draw(file: str, title: str, profiles: list[str], columns: int, ratios: bool, figures: str) -> None:
        if not profiles:
            return
        panels = [(profile, of_profile[profile]) for profile in profiles]
        if ratios:
            top = top_of(panels)
            figure(folder / file, title, panels, columns, "makespan / LB", partial(ratio_panel, top=top))
        else:
            figure(folder / file, title, panels, columns, "images / s", throughput_panel)
        drawn.append((file, title, figures))

    order = sorted(of_profile, key=lambda name: (NETWORKS.index(parts_of(name)[0]), *parts_of(name)[1:]))
    small = [name for name in order if name.endswith("-b32") and parts_of(name)[1] < 500]
    draw("figure05.png", "Relative makespan, small images, batch 32", small, 5, True, "5")
    for network in NETWORKS:
        own = [name for name in order if parts_of(name)[0] == network]
        figures = {"r": "6-8", "d": "9-11", "i": "12"}[network[0]]
        draw(f"ratio-{network}.png", f"Relative makespan, {network}", own, 4, True, figures)
    number = 13
    for family in ("resnet", "densenet"):
        for image in (224, 500, 1000):
            own = [name for name in order if name.startswith(family) and parts_of(name)[1] == image]
            title = f"Throughput, {family}, images {image}x{image}"
            draw(f"throughput-{family}-{image}.png", title, own, 4, False, str(number))
            number += 1
    own = [name for name in order if name.startswith("inception")]
    draw("throughput-inception_v3.png", "Throughput, inception_v3", own, 4, False, str(number))
    return drawn


def measure(given: argparse.Namespace) -> tuple[Parts, Row]:
    """All points."""
    profiles: Sequence[str] = given.profiles or names()
    limits, time_limit, known = given.limits, given.time_limit, Cache(given.cache)
    hashed: Sequence[float] = HASHED
    load: Callable[[str], ms.Chain] = captured
    if given.quick:
        load = ms.profiles.load
        profiles, limits, time_limit = ["resnet18-224-b32", "densenet121-224-b32"], [20.0, 50.0, 90.0], 0.05
        hashed, known = (50.0,), Cache(None)
    parts = {
        part: known.through(work_of(part, load, profiles, limits, time_limit, hashed), part)
        for part in ("points", "ties")
    }
    return parts, {"time_limit": time_limit}


def main() -> None:
    """Compute the points, then draw, then write the claims."""
    parser = arguments("europar2020", __doc__)
    parser.add_argument("--profiles", nargs="+")
    parser.add_argument("--limits", nargs="+", type=float, default=[5.0 * k for k in range(21)], help="percent")
    parser.add_argument("--time-limit", type=float, default=0.2, help="seconds for offload, and for dynprog's DP")
    given = parser.parse_args()
    publish("europar2020", given, measure, lambda parts, folder: pictures(parts["points"], folder), report)


if __name__ == "__main__":
    main()

"""Step time against peak memory, a picture for each network and precision."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.common import Row

# Okabe and Ito's palette, and a marker each: to be told apart without colours too.
STYLES: dict[str, tuple[str, str, str]] = {
    "plain": ("no plan", "#000000", "o"),
    "checkpoint": ("checkpoint per block", "#d55e00", "s"),
    "checkpoint_sequential": ("checkpoint_sequential", "#cc79a7", "^"),
    "save_on_cpu": ("save_on_cpu", "#009e73", "D"),
    "compile": ("torch.compile, memory budget", "#e69f00", "P"),
    "backend": ("memsched in torch.compile", "#56b4e9", "v"),
}
OURS = "#0072b2"


def draw(rows: Sequence[Row], path: Path) -> bool:
    """Draw the points of one network; False if there are none."""
    from matplotlib.figure import Figure

    ran = [row for row in rows if row["status"] == "ok" and "seconds" in row]
    if not ran:
        return False
    most = max(row["peak"] for row in ran)
    scale, unit = (2**30, "GiB") if most >= 2**30 else (2**20, "MiB")
    figure = Figure(figsize=(8.0, 5.0), layout="constrained")
    axes = figure.subplots()
    planned = sorted((row for row in ran if row["method"] == "plan"), key=lambda row: row["budget"])
    if planned:
        _draw_plans(axes, planned, scale)
    for method, (label, colour, marker) in STYLES.items():
        own = sorted((row for row in ran if row["method"] == method), key=lambda row: row["peak"])
        if own:
            memory, seconds = [row["peak"] / scale for row in own], [1e3 * row["seconds"] for row in own]
            ring = method == "plain"  # so that what lies on it is seen too
            axes.plot(
                memory,
                seconds,
                marker,
                color=colour,
                fillstyle="none" if ring else "full",
                markersize=14 if ring else 9,
                markeredgecolor=colour if ring else "white",
                label=label,
                zorder=4,
            )
    profile = next((row for row in rows if row["method"] == "profile" and row["status"] == "ok"), None)
    if profile is not None:
        least: dict[str, Any] = {"color": "0.45", "linestyle": (0, (1, 2)), "linewidth": 1.3, "zorder": 1}
        axes.axvline(profile["min_memory"] / scale, label="any plan needs more", **least)
    _finish(figure, axes, rows[0], unit, max(1e3 * row["seconds"] for row in ran))
    figure.savefig(path, dpi=150)
    return True


def _draw_plans(axes: Any, planned: Sequence[Row], scale: int) -> None:
    """Predicted and measured, and how far each peak stays below its budget."""
    budgets = [row["budget"] / scale for row in planned]
    predicted = [1e3 * row["predicted_seconds"] for row in planned]
    measured = [1e3 * row["seconds"] for row in planned]
    peaks = [row["peak"] / scale for row in planned]
    axes.plot(budgets, predicted, color=OURS, linewidth=1.5, linestyle="--", label="memsched, predicted", zorder=2)
    for peak, budget, seconds in zip(peaks, budgets, measured, strict=True):
        axes.plot([peak, budget], [seconds, seconds], color=OURS, linewidth=1, alpha=0.6, zorder=2)
    axes.plot(
        peaks, measured, "o", color=OURS, markersize=8, label="memsched, measured", zorder=5, markeredgecolor="white"
    )
    axes.plot(budgets, measured, "|", color=OURS, markersize=12, label="its budget", zorder=3)


def _finish(figure: Any, axes: Any, row: Row, unit: str, highest: float) -> None:
    axes.set_xlabel(f"peak memory ({unit})")
    axes.set_ylabel("forward and backward (ms)")
    axes.margins(x=0.05)
    axes.set_ylim(0, 1.1 * highest)
    axes.grid(color="0.92", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    where = f"{row.get('device', '')}, torch {row.get('torch', '')}"
    axes.set_title(f"{row['model']}, {row['precision']}\n", loc="left", fontsize=13, fontweight="bold")
    axes.text(0, 1.02, where, transform=axes.transAxes, fontsize=9.5, color="0.3")
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9.5)

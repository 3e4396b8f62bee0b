"""Pictures of sweeps: makespan against memory, one panel per problem and link, one line per planner."""

from __future__ import annotations

import math
import os
import textwrap
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from memsched.errors import InvalidInputError
from memsched.result import as_fast
from memsched.show.plots.curves import Curve, draw_curves, style_of
from memsched.show.plots.figure import as_written, byte_unit, clear, drawing, heading, legend
from memsched.show.plots.palette import IDEAL, line_styles
from memsched.show.words import unit_of
from memsched.study.sweep.names import link_names, planner_names, problem_names
from memsched.study.sweep.rows import ReadRow as Row
from memsched.study.sweep.rows import checked
from memsched.study.sweep.table import Sweep
from memsched.support.docstrings import picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_PANELS = 60
_WIDTHS = {1: 6.0, 2: 5.0, 3: 3.5}  # inches of a panel, by the number of columns: together at most 1600 pixels
_HEIGHT = 3.1
_LETTERS = 13  # in an inch, of a title
_SHARE = 1 / 3  # of the axis of memory that a problem must fill where all problems have one
_HEADING = 0.72  # inches
_MARK = 5.5  # points, of the mark of a plan
_LINEAR = 0.01  # over the ideal, up to which the scale is linear
_LINSCALE = 0.6  # of a decade: how high that part is
_ABOVE = 1.25  # times the largest overhead, where the axis ends

Styles = dict[str, tuple[int, int]]
"""What a line is called -> where its colour and its marker are in LINES and MARKERS."""


def _panels(rows: Sequence[Row]) -> dict[tuple[str, str], dict[str, list[Row]]]:
    """Planned rows by the names of problem and link, and by that of the planner."""
    found: dict[tuple[str, str], dict[str, list[Row]]] = {}
    names = zip(problem_names(rows), link_names(rows), planner_names(rows), strict=True)
    for row, (problem, link, planner) in zip(rows, names, strict=True):
        if row["status"] == "planned":
            found.setdefault((problem, link), {}).setdefault(planner, []).append(row)
    return found


def styles_of(rows: Sequence[Row]) -> Styles:
    """How the line of each planner with a plan looks, in order of first appearance."""
    named = zip(planner_names(rows), rows, strict=True)
    planners = {name: row["planner"] for name, row in named if row["status"] == "planned"}
    return dict(zip(planners, line_styles([*planners.values()]), strict=True))


def _ranges(panels: dict[tuple[str, str], dict[str, list[Row]]]) -> tuple[dict[str, tuple[float, float]], bool]:
    """Bytes from and to, by problem, and whether they are the same for all: they are unless that hides one of them."""
    found: dict[str, tuple[float, float]] = {}
    for (problem, _), lines in panels.items():
        memory = [float(row["memory"]) for own in lines.values() for row in own]
        low, high = found.get(problem, (memory[0], memory[0]))
        found[problem] = (min(low, *memory), max(high, *memory))
    least, most = min(low for low, _ in found.values()), max(high for _, high in found.values())
    shared = all(high - low >= _SHARE * (most - least) for low, high in found.values())
    for problem, (low, high) in found.items():
        first, last = (least, most) if shared else (low, high)
        margin = 0.05 * (last - first) or 0.05 * last or 1.0
        found[problem] = (first - margin, last + margin)
    return found, shared


def _columns(panels: dict[tuple[str, str], dict[str, list[Row]]]) -> int:
    """How many panels stand in a row: as many as divide those of each problem, so that a row has one problem."""
    counts = Counter(problem for problem, _ in panels)
    most = min(max(_WIDTHS), len(panels))
    fair = [columns for columns in range(2, most + 1) if all(count % columns == 0 for count in counts.values())]
    return max(fair, default=2 if len(panels) == 4 else most)


def _over(row: Row) -> float:
    """By how much of the ideal the makespan is above it; the makespan itself if the ideal takes no time."""
    return float((row["makespan"] - row["ideal"]) / (row["ideal"] or 1.0))


def _scaled(axes: Axes, most: float) -> None:
    """A scale of overheads up to `most`: linear up to 1 %, for good planners differ by little, and then logarithmic."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

    axes.set_yscale("symlog", linthresh=_LINEAR, linscale=_LINSCALE)
    if most <= _LINEAR:
        most = most or _LINEAR
        ticks = [tick for tick in MaxNLocator(5).tick_values(0, most) if 0 <= tick <= most]
    else:
        decades = range(round(math.log10(_LINEAR)), math.ceil(math.log10(most)) + 1)
        every = -(-len(decades) // 6)
        steps = (1.0, 3.0) if len(decades) <= 4 else (1.0,)
        found = [step * 10.0**power for power in decades[::every] for step in steps]
        ticks = [0.0, *(tick for tick in found if tick <= _ABOVE * most)]
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda tick, _: f"{100 * tick:.4g} %"))
    axes.set_ylim(*((-0.3 * _LINEAR, _ABOVE * most) if most > _LINEAR else (-0.12 * most, 1.12 * most)))


def _draw(axes: Axes, lines: dict[str, list[Row]], styles: Styles, scale: int) -> list[str]:
    """Draw the lines, the first on top, on axes that have their limits; returns what is to be said of their marks."""
    curves = []
    for name, style in styles.items():
        points = sorted((row["memory"] / scale, _over(row)) for row in lines.get(name, []))
        if points:
            x, y = np.array(points).T
            curves.append(Curve(name, style, x, y))
    _, told = draw_curves(axes, curves, _MARK)
    axes.axhline(0.0, color=IDEAL, linewidth=1.2, zorder=1)
    axes.grid(color="0.92", linewidth=0.6)
    clear(axes, None)
    axes.tick_params(labelsize=8)
    return told


def footnote(rows: Sequence[Row]) -> str:
    """Which planners have a slower plan for more memory, and why; empty where none has."""
    rising: dict[str, None] = {}
    for lines in _panels(rows).values():
        for name, own in lines.items():
            spans = [row["makespan"] for row in sorted(own, key=lambda row: (row["memory"], row["makespan"]))]
            if not all(as_fast(later, earlier) for earlier, later in pairwise(spans)):
                rising[name] = None
    names = [name for name in styles_of(rows) if name in rising]
    if not names:
        return ""
    told = f"{', '.join(names[:-1])} and {names[-1]} are" if len(names) > 1 else f"{names[0]} is"
    return (
        f"{told} slower with more memory at some points: each point is a search of its own, and plans for less memory, "
        "or a slower link, run there, too."
    )


def _draw_legend(figure: Figure, styles: Styles, per_row: int, low: float) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], label=name, **style_of(Curve(name, style, np.empty(0), np.empty(0)), _MARK))
        for name, style in styles.items()
    ]
    handles.append(Line2D([], [], color=IDEAL, linewidth=1.2, label="the ideal: computation alone"))
    legend(figure, handles, min(len(handles), per_row), fontsize=9, bbox_to_anchor=(0.5, low))


@picture
def plot_sweep(rows: Sweep | Sequence[Row], path: str | os.PathLike[str] | None = None) -> Figure:
    """Plot how far makespans are above the ideal, against memory: a panel per problem and link, a line per planner.

    The ideal is the time of computation alone. All panels have one scale, which is linear up to 1 % above the ideal and
    logarithmic from there. The panels of a problem have one scale of memory, which all problems share unless that
    leaves one of them less than a third of it. Each point is a plan; the lines between them only guide the eye. Needs
    matplotlib; does not touch pyplot's global state.

    Parameters
    ----------
    rows : Sweep or sequence of dict
        What `memsched.sweep` or `memsched.read_store` returns, or its rows.

    Raises
    ------
    InvalidInputError
        Also if nothing is planned, or there are more than 60 panels.

    Examples
    --------
    >>> import memsched as ms
    >>> table = ms.sweep("resnet18-224-b32", ["greedy", "rotor"], memory=["20%", "60%"], beta=[6e9, 12e9])
    >>> [axes.get_title(loc="left") for axes in ms.plot_sweep(table).axes]
    ['resnet18-224-b32, 6 GB/s', 'resnet18-224-b32, 12 GB/s']
    """
    rows = rows.rows if isinstance(rows, Sweep) else rows
    panels = _panels(checked(rows))
    if not panels:
        raise InvalidInputError("the sweep has no planned point, so there is nothing to draw")
    if len(panels) > MOST_PANELS:
        raise InvalidInputError(
            f"the sweep has {len(panels)} problems and links; a picture shows {MOST_PANELS} at most: "
            "draw a part of its rows with memsched.plot_sweep, or make a report"
        )
    styles = styles_of(rows)
    columns = _columns(panels)
    wide, height = _WIDTHS[columns], math.ceil(len(panels) / columns)
    per_row = max(1, int(columns * wide / max(1.9, 0.6 + 0.07 * max(map(len, styles)))))
    note = textwrap.wrap(footnote(rows), int(_LETTERS * 1.15 * columns * wide))
    lowest = 0.07 + 0.17 * len(note)  # inches, and so is the next
    below = 0.08 + lowest + 0.24 * math.ceil((1 + len(styles)) / per_row)
    with drawing(path, unit_of(rows)) as figure:
        ranges, shared = _ranges(panels)
        total = height * _HEIGHT + below + _HEADING
        figure.set_size_inches(columns * wide, total)
        told = _draw_grid(figure, panels, styles, ranges, (height, columns))
        _draw_legend(figure, styles, per_row, lowest / total)
        figure.text(0.5, 0.06 / total, "\n".join(note), fontsize=8.5, color="0.25", ha="center")
        told += [] if shared else ["each problem has its own range of memory"]
        heading(figure, "makespan against memory", "; ".join(["a point is a plan", *told]))
        as_written(figure)  # before its texts are measured
        figure.tight_layout(rect=(0, below / total, 1, 1 - _HEADING / total))
    return figure


def _draw_grid(
    figure: Figure,
    panels: dict[tuple[str, str], dict[str, list[Row]]],
    styles: Styles,
    ranges: dict[str, tuple[float, float]],
    shape: tuple[int, int],
) -> list[str]:
    """Draw the panels, row by row, on one scale of overheads; returns what is to be said of the marks."""
    grid, told = figure.subplots(*shape, squeeze=False, sharey=True), dict[str, None]()
    _scaled(grid[0, 0], max(_over(row) for lines in panels.values() for own in lines.values() for row in own))
    letters = int(_LETTERS * _WIDTHS[shape[1]])
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    for axes, ((problem, link), lines) in zip(grid.flat, panels.items(), strict=False):
        scale, unit = byte_unit(int(ranges[problem][1]))
        axes.set_xlim(*(end / scale for end in ranges[problem]))
        told |= dict.fromkeys(_draw(axes, lines, styles, scale))
        axes.set_xlabel(f"memory ({unit})", fontsize=9)
        title = f"{problem}, {link}"
        if len(title) > letters:
            title = f"{textwrap.fill(problem, letters)},\n{textwrap.fill(link, letters)}"
        axes.set_title(title, fontsize=9.5, loc="left")
    for line in grid:
        line[0].set_ylabel("over the ideal", fontsize=9)
    return list(told)

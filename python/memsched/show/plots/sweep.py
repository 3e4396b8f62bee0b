"""Pictures of sweeps: makespan against memory, one panel per problem and link, one line per planner."""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from memsched.errors import InvalidInputError
from memsched.show.plots.figure import as_written, byte_unit, clear, new_figure, save
from memsched.show.plots.frontier import COLOURS, MARKERS
from memsched.study.sweep.names import link_names, planner_names, problem_names
from memsched.study.sweep.rows import ReadRow as Row
from memsched.study.sweep.rows import checked
from memsched.support.docstrings import picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_PANELS = 60
_PANEL = (4.2, 3.1)  # inches
_COLUMNS = 4
_LETTERS = 56  # in the width of a panel, of a title


def _panels(rows: Sequence[Row]) -> dict[tuple[str, str], dict[str, list[Row]]]:
    """Planned rows by the names of problem and link, and by that of the planner."""
    found: dict[tuple[str, str], dict[str, list[Row]]] = {}
    names = zip(problem_names(rows), link_names(rows), planner_names(rows), strict=True)
    for row, (problem, link, planner) in zip(rows, names, strict=True):
        if row["status"] == "planned":
            found.setdefault((problem, link), {}).setdefault(planner, []).append(row)
    return found


def _draw(axes: Axes, lines: dict[str, list[Row]], names: list[str]) -> None:
    """Draw the lines; the first is on top and thinnest, so that coinciding lines are all visible."""
    scale, unit = byte_unit(max(row["memory"] for own in lines.values() for row in own))
    for at, name in enumerate(names):
        below = min(at, 4)
        points = sorted((row["memory"] / scale, row["makespan"] / (row["ideal"] or 1.0)) for row in lines.get(name, []))
        if points:
            axes.plot(
                *zip(*points, strict=True),
                color=COLOURS[at % len(COLOURS)],
                marker=MARKERS[at % len(MARKERS)] if len(points) <= 30 else None,
                markersize=4 + below,
                markeredgecolor="white",
                markeredgewidth=0.4,
                linewidth=1.2 + 0.6 * below,
                zorder=4 - at / len(names),
            )
    axes.axhline(1.0, color="0.72", linewidth=1.2, zorder=1)
    axes.set_xlabel(f"memory ({unit})", fontsize=9)
    axes.grid(color="0.92", linewidth=0.6)
    clear(axes, None)
    axes.tick_params(labelsize=8)


def _draw_legend(figure: Figure, names: list[str], per_row: int) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=COLOURS[at % len(COLOURS)], marker=MARKERS[at % len(MARKERS)], markersize=5, label=name)
        for at, name in enumerate(names)
    ]
    figure.legend(handles=handles, loc="lower center", ncols=min(len(names), per_row), frameon=False, fontsize=9)


@picture
def plot_sweep(rows: Sequence[Row], path: str | os.PathLike[str] | None = None) -> Figure:
    """Plot makespan over the ideal against memory: a panel per problem and link, a line per planner.

    Each point is a plan; the lines between them only guide the eye. The ideal, 1, is the time of computation alone.
    Needs matplotlib; does not touch pyplot's global state.

    Parameters
    ----------
    rows : sequence of dict
        The rows of a Sweep.

    Raises
    ------
    InvalidInputError
        Also if nothing is planned, or there are more than 60 panels.

    Examples
    --------
    >>> import memsched as ms
    >>> table = ms.sweep("resnet18-224-b32", ["greedy", "rotor"], memory=["20%", "60%"], beta=[6e9, 12e9])
    >>> [axes.get_title(loc="left") for axes in ms.plot_sweep(table.rows).axes]
    ['resnet18-224-b32, 6 GB/s', 'resnet18-224-b32, 12 GB/s']
    """
    panels = _panels(checked(rows))
    if not panels:
        raise InvalidInputError("the sweep has no planned point, so there is nothing to draw")
    if len(panels) > MOST_PANELS:
        raise InvalidInputError(
            f"the sweep has {len(panels)} problems and links; a picture shows {MOST_PANELS} at most: "
            "draw a part of its rows with memsched.plot_sweep, or make a report"
        )
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    columns = min(_COLUMNS, len(panels))
    height = math.ceil(len(panels) / columns)
    per_row = max(1, int(columns * _PANEL[0] / max(1.6, 0.6 + 0.07 * max(map(len, names)))))
    legend = 0.15 + 0.24 * math.ceil(len(names) / per_row)  # inches
    figure = new_figure(path)
    width, total = columns * _PANEL[0], height * _PANEL[1] + legend
    figure.set_size_inches(width, total)
    grid = figure.subplots(height, columns, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    for axes, ((problem, link), lines) in zip(grid.flat, panels.items(), strict=False):
        _draw(axes, lines, names)
        title = f"{problem}, {link}"
        if len(title) > _LETTERS:
            title = f"{problem},\n{textwrap.fill(link, _LETTERS)}"
        axes.set_title(title, fontsize=9.5, loc="left")
    for line in grid:
        line[0].set_ylabel("makespan / ideal", fontsize=9)
    _draw_legend(figure, names, per_row)
    as_written(figure)  # before its texts are measured
    figure.tight_layout(rect=(0, legend / total, 1, 1))
    save(figure, path)
    return figure

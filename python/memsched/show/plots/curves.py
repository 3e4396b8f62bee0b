"""Curves with marks, as frontiers and sweeps have them: those that coincide are all seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from memsched.show.plots.palette import LINES, MARKERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

NESTED = "where marks coincide, one lies inside the other"
_APART = 1.0  # sizes of a mark, between the marks of a curve as wide as the axes
_NEAR = 3.0  # points, of marks that would hide each other
_RING, _MOST_RINGS = 3.2, 5  # points by which a mark is larger than one that lies on it, and how often it is

Numbers = npt.NDArray[np.float64]


class Curve(NamedTuple):
    """A planner's line, in the units of the axes."""

    name: str
    style: tuple[int, int]  # where its colour and its marker are in LINES and MARKERS
    x: Numbers
    y: Numbers


def style_of(curve: Curve, size: float) -> dict[str, Any]:
    """How a curve looks: all have the same width and the same marks."""
    colour, marker = curve.style
    return {
        "color": LINES[colour],
        "marker": MARKERS[marker],
        "markersize": size,
        "markeredgecolor": "white",
        "markeredgewidth": 0.5,
        "linewidth": 1.5,
    }


def draw_curves(axes: Axes, curves: Sequence[Curve], size: float) -> tuple[list[Line2D], list[str]]:
    """Draw the curves on axes that have their limits, the first on top; also what is to be said of their marks.

    If one has more points than marks have room, all have a mark at every second, third, .. of them. Where several
    marks are at one place, those below are larger, so that all are seen.
    """
    figure = axes.get_figure()
    assert figure is not None
    most = max(2, int(axes.get_window_extent().width * 72 / figure.dpi / (_APART * size)))
    every = max(1, *(-(-len(one.x) // most) for one in curves))
    marked = [np.arange(0, len(one.x), every) for one in curves]
    places = [_places(axes, one)[marks] for one, marks in zip(curves, marked, strict=True)]
    lines, nested = [], False
    for at, (one, marks) in enumerate(zip(curves, marked, strict=True)):
        over = 4 - at / len(curves)
        style = style_of(one, size)
        lines += axes.plot(one.x, one.y, label=one.name, markevery=marks.tolist(), zorder=over, **style)
        above = sum((_meets(places[at], other) for other in places[:at]), np.zeros(len(marks), int))
        if above.any():
            nested = True
            look = {"marker": style["marker"], "color": style["color"], "edgecolors": "white", "linewidths": 0.5}
            chosen = marks[above > 0]
            wide = size + _RING * np.minimum(above[above > 0], _MOST_RINGS)
            axes.scatter(one.x[chosen], one.y[chosen], s=wide**2, zorder=over, **look)
    told = [f"one plan in {every} has a mark"] if every > 1 else []
    return lines, [*told, *([NESTED] if nested else [])]


def _places(axes: Axes, curve: Curve) -> Numbers:
    """Where the points are, in points of the page."""
    figure = axes.get_figure()
    assert figure is not None
    found = axes.transData.transform(np.column_stack([curve.x, curve.y])) if len(curve.x) else np.empty((0, 2))
    return np.asarray(found * 72 / figure.dpi, float)


def _meets(own: Numbers, other: Numbers) -> npt.NDArray[np.int_]:
    """1 for each place that is near one of the others."""
    apart = np.abs(own[:, None, :] - other[None, :, :]).max(axis=2, initial=0.0)
    return np.asarray((apart < _NEAR).any(axis=1), int)

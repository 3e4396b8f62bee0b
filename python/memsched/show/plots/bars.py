"""Horizontal bars with words beside them: what pictures of fits and of comparisons share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from memsched.show.plots.figure import clear, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BAR, _FRAME = 0.42, 1.5  # inches: the height of a bar with its gap, and of what stands around the bars
_LONGEST = 24  # letters of a name
_LEFT, _RIGHT, _WIDEST = 0.19, 0.985, 0.62  # shares of the width: where axes begin, words end, and of the axes
_LETTER = 0.0073  # of the words beside the bars


class Bar(NamedTuple):
    """A bar, in the unit of the axis, and what is written at its right."""

    name: str
    length: float
    colour: str
    words: str


def draw_bars(figure: Figure, bars: Sequence[Bar], axis: str, most: float) -> Axes:
    """Draw the bars from top to bottom, on an axis from 0 to `most`; the k-th is at -k."""
    height = _FRAME + _BAR * max(1, len(bars))
    figure.set_size_inches(10.0, height)
    words = 0.01 + _LETTER * max((len(one.words) for one in bars), default=0)
    wide = max(0.2, min(_WIDEST, _RIGHT - _LEFT - words))
    axes = figure.add_axes((_LEFT, 0.62 / height, wide, 1 - _FRAME / height))
    places = range(0, -len(bars), -1)
    axes.barh(places, [one.length for one in bars], height=0.62, color=[one.colour for one in bars])
    right = 1.02 * most or 1.0
    axes.set_xlim(0, right)
    axes.set_ylim(0.4 - max(1, len(bars)), 0.6)
    axes.set_yticks(list(places), [shortened(one.name, _LONGEST) for one in bars])
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(axis)
    for place, one in zip(places, bars, strict=True):
        axes.annotate(one.words, (right, place), (6, 0), textcoords="offset points", va="center", fontsize=9)
    clear(axes, "x")
    return axes

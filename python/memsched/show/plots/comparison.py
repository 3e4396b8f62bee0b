"""The picture of a comparison: the makespan of each planner, with the lower bound on its kind of plans."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from memsched.errors import InfeasibleError, InvalidInputError, MemschedError
from memsched.problems.problem import name_of
from memsched.result import Result
from memsched.show.plots.bars import Bar, draw_bars
from memsched.show.plots.figure import drawing, heading, time_unit
from memsched.show.plots.palette import LINES, line_styles
from memsched.show.words import needed, unit_of
from memsched.study.comparison import Comparison
from memsched.support.formats import format_bytes, format_link, format_percent, format_seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_comparison(found: Comparison, path: str | os.PathLike[str] | None = None) -> Figure:
    """Draw a bar for each planner, as long as its makespan, and the lower bound on the plans that it can make.

    Parameters
    ----------
    found : Comparison
    path : path, optional
        Where to save the picture: .png, .svg or .pdf.

    Raises
    ------
    InvalidInputError
        No planner has a plan, or the path ends otherwise.
    MemschedError
        matplotlib is not installed.
    """
    best = found.best
    if best is None:
        raise InvalidInputError("no planner has a plan, so there is nothing to draw")
    most = max(one.makespan for one in found.values() if isinstance(one, Result))
    factor, unit = time_unit(most)
    styles = zip(found.items(), line_styles([*found]), strict=True)
    bars = [
        Bar(name, factor * one.makespan if isinstance(one, Result) else 0.0, LINES[colour], _said(one, best))
        for (name, one), (colour, _) in styles
    ]
    with drawing(path, unit_of(found)) as figure:
        machine = f"{format_bytes(best.device.memory)}, {format_link(best.device)}"
        told = f"{machine}; black: a lower bound on the planner's kind"
        axes = draw_bars(figure, bars, f"makespan ({unit})", factor * most)
        for at, one in enumerate(found.values()):
            if isinstance(one, Result) and one.lower_bound > 0:
                axes.plot([factor * one.lower_bound] * 2, [-at - 0.4, -at + 0.4], color="black", linewidth=1.4)
        heading(figure, f"planners on {name_of(best.problem)}", f"{told} of plans")
    return figure


def _said(one: Result | MemschedError, best: Result) -> str:
    if isinstance(one, InfeasibleError):
        return f"no plan; fits in {needed(one.min_memory, best)}"
    if not isinstance(one, Result):
        return "failed"
    gap = f", gap {format_percent(one.gap)}" if one.lower_bound > 0 else ""
    return f"{format_seconds(one.makespan)}{', optimal' if one.optimal else gap}"

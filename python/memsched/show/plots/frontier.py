"""Pictures of frontiers: the makespan of each planner against memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from memsched import _core
from memsched._core import Device
from memsched.errors import InvalidInputError
from memsched.planners.registry import PLANNERS, least_on
from memsched.problems.bounds import alike
from memsched.problems.problem import altered, graph_of, name_of, peak_memory, stages_or_ops
from memsched.result import Planned, Result, as_fast, results_in
from memsched.show.arena import budget_of
from memsched.show.plots.curves import Curve, draw_curves
from memsched.show.plots.figure import byte_unit, clear, drawing, heading, legend, time_unit
from memsched.show.plots.palette import IDEAL, line_styles
from memsched.show.words import unit_of
from memsched.study.frontier import Frontier
from memsched.support import checks
from memsched.support.docstrings import picture
from memsched.support.formats import format_bandwidth, format_bytes, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

_IDEAL: dict[str, Any] = {"color": IDEAL, "linewidth": 1.8, "zorder": 2.0}
_PEAK: dict[str, Any] = {"color": "0.4", "linestyle": (0, (1, 2)), "linewidth": 1.3, "zorder": 2.0}
# Key: whether the bound holds for plans that recompute.
_BOUNDS: dict[bool, dict[str, Any]] = {
    True: {"linestyle": (0, (5, 3))},
    False: {"linestyle": (0, (6, 2, 1, 2))},
}
_BOUND: dict[str, Any] = {"color": "black", "linewidth": 1.1, "zorder": 5.0}
_MAY_DO_ALL = ("pofo", "selective")  # of what others do: offload and recompute
_BEYOND = ("modnn", "vdnn_plus", "olla")  # split the batch or reorder, which those do not
_COLUMNS = 3  # of the legend
_MARK = 6.0  # points, of the mark of a plan
_MOST_OVER = 1e300  # times the ideal: a second axis for more would overflow; matplotlib first makes one up to 1
_NEAR = 0.02  # share of the width below which marks would hide each other
_LEVEL = 0.036  # share of the height from one mark to the next above


def _checked(frontiers: Any) -> list[Frontier]:
    """A list of frontiers of one problem on one link; single plans become a frontier for each planner."""
    given = results_in(frontiers)
    given = [given] if isinstance(given, Result) else given
    listed = checks.some("frontiers", _curves(given) if isinstance(given, list) else given, Frontier)
    first = listed[0]
    for other in listed[1:]:
        if other.problem != first.problem:
            names = f"'{first.problem.name}' and '{other.problem.name}'"
            raise InvalidInputError(f"the frontiers are of different problems, {names}; draw one problem at a time")
        if _link(other) != _link(first):
            raise InvalidInputError(f"the links differ: {other.device!r} and {first.device!r}; draw one link at a time")
    return listed


def _curves(given: list[Any]) -> list[Any]:
    """The list with a frontier in place of the results of each planner, on each problem and link."""
    found: list[Any] = []
    groups: list[list[Result]] = []
    for one in given:
        if not isinstance(one, Result):
            found.append(one)
            continue
        alike = (rest for rest in groups if _drawn_as_one(one, rest[0]))
        group = next(alike, None)
        if group is None:
            groups.append([one])
        else:
            group.append(one)
    return found + [_curve(group) for group in groups]


def _drawn_as_one(one: Result, other: Result) -> bool:
    same = one.planner == other.planner and _link(one) == _link(other)
    return same and type(one.problem) is type(other.problem) and bool(one.problem == other.problem)


def _curve(results: list[Result]) -> Frontier:
    """The frontier through single plans of one planner: the fastest for each memory."""
    best: dict[int, Result] = {}
    for one in sorted(results, key=lambda one: -one.makespan):
        best[budget_of(one)] = one
    memory = sorted(best)
    device = altered(results[0].device, memory=memory[-1])
    return Frontier(
        planner=results[0].planner,
        problem=results[0].problem,
        device=device,
        ideal=_core.compute_time(graph_of(results[0].problem)),
        results=tuple(best[one] for one in memory),
        memory=np.array(memory, dtype=np.int64),
    )


def _link(one: Frontier | Result) -> Device:
    """The device with a fixed memory, to compare links only."""
    return altered(one.device, memory=1)


def least_memory(frontier: Frontier) -> int | None:
    """The least memory of a planner in bytes, or None if the curve does not reach it."""
    planned = np.isfinite(frontier.makespan)
    if not planned.any():
        return None
    chunk = next(one.schedule.chunk for one in frontier.results if one is not None)
    known = least_on(frontier.problem, frontier.planner, frontier.device, chunk)
    if known > frontier.memory[-1]:
        return None
    if (frontier.memory[~planned] >= known).any():  # no link, or too little host memory
        return int(frontier.memory[planned][0])
    return known if known >= frontier.memory[0] else None


def lower_bounds(frontiers: Sequence[Frontier]) -> dict[bool, list[tuple[int, float]]]:
    """Points (bytes, seconds) of the bounds with and without recomputation, where some planner has a plan."""
    found: dict[bool, dict[int, float]] = {True: {}, False: {}}
    for one in frontiers:
        points = found[one.planner == "auto" or PLANNERS[one.planner].recomputes]
        for memory, bound in zip(one.memory.tolist(), one.lower_bound.tolist(), strict=True):
            if not np.isnan(bound):
                points[memory] = min(bound, points.get(memory, bound))
    return {kind: sorted(points.items()) for kind, points in found.items() if points}


def bound_words(frontiers: Sequence[Frontier], recompute: bool) -> str:
    """The plans that a curve of `lower_bounds` covers, in words."""
    chunk = next((found.schedule.chunk for one in frontiers for found in one.results if found is not None), None)
    plans = "of all plans" if recompute else "of plans without recomputation"
    return plans + alike(frontiers[0].problem, chunk, "all" if recompute else "once")


def footnote(frontiers: Sequence[Frontier]) -> str:
    """Why a planner that may plan as another one does lies above it; empty where none does."""
    for one in frontiers:
        makespans = dict(zip(one.memory.tolist(), one.makespan.tolist(), strict=True))
        others = [other for other in frontiers if other.planner not in _BEYOND]
        for other in others if one.planner in _MAY_DO_ALL else ():
            points = zip(other.memory.tolist(), other.makespan.tolist(), strict=True)
            if any(not as_fast(makespans.get(memory, 0.0), makespan) for memory, makespan in points):
                return (
                    f"{one.planner} lies above {other.planner} at some memories: it may make the same plans, but no "
                    "search tries all of them."
                )
    return ""


def _draw_curves(axes: Axes, frontiers: list[Frontier], factor: float, scale: int) -> tuple[list[Line2D], list[str]]:
    """Draw the curves; also what is to be said of their marks."""
    styles = line_styles([one.planner for one in frontiers])
    curves = []
    for one, style in zip(frontiers, styles, strict=True):
        planned = np.isfinite(one.makespan)
        name = one.planner if planned.any() else f"{one.planner} (no plan)"
        curves.append(Curve(name, style, one.memory[planned] / scale, factor * one.makespan[planned]))
    return draw_curves(axes, curves, _MARK)


def _marks(frontiers: list[Frontier], width: float) -> list[tuple[int, int, int]]:
    """Position in the list, least memory (bytes) and level, which is raised if marks would hide each other."""
    placed: list[tuple[int, int, int]] = []
    for at, one in enumerate(frontiers):
        least = least_memory(one)
        if least is not None:
            placed.append((at, least, sum(abs(least - other) < _NEAR * width for _, other, _ in placed)))
    return placed


def _draw_marks(axes: Axes, marks: list[tuple[int, int, int]], lines: list[Line2D], scale: int) -> None:
    """A triangle for each planner's minimum, in the colour of its line, in a strip of their own above the axis."""
    from matplotlib.patches import Rectangle

    if marks:
        height = 0.012 + _LEVEL * (1 + max(level for *_, level in marks))
        axes.add_patch(Rectangle((0, 0), 1, height, transform=axes.transAxes, color="0.92", linewidth=0, zorder=2.5))
    for at, least, level in marks:
        axes.plot(
            [least / scale],
            [0.018 + _LEVEL * level],
            transform=axes.get_xaxis_transform(),
            marker=(3, 0, 0),
            markersize=8.5,
            color=lines[at].get_color(),
            markeredgecolor="white",
            markeredgewidth=0.5,
            linestyle="none",
            zorder=6,
        )


def _memory_range(frontiers: list[Frontier]) -> tuple[float, float]:
    """Bytes with a margin: every point fits and, unless it is far away, the peak."""
    memory = np.concatenate([one.memory for one in frontiers])
    low, high, peak = int(memory.min()), int(memory.max()), peak_memory(frontiers[0].problem)
    if high < peak <= 3 * high:
        high = peak
    margin = 0.04 * (high - low) or 0.5 * high
    return low - margin, high + margin


def _time_range(frontiers: list[Frontier], levels: int) -> tuple[float, float]:
    """Seconds, with room below all curves for the levels of marks."""
    makespan = np.concatenate([one.makespan for one in frontiers])
    ideal = frontiers[0].ideal
    most = max([ideal, *makespan[np.isfinite(makespan)].tolist()])
    least = min([ideal, *(seconds for points in lower_bounds(frontiers).values() for _, seconds in points)])
    below = 0.06 + _LEVEL * levels  # of the height
    height = 1.05 * (most - least or most or 1.0) / (1 - below)
    return least - below * height, least + (1 - below) * height


def _second_axis(axes: Axes, ideal: float) -> None:
    """A second axis with the overhead over the ideal; `ideal` is in the unit of the first axis."""
    from matplotlib.ticker import MaxNLocator

    def over(makespan: Any) -> Any:
        return 100 * (makespan / ideal - 1)

    def back(percent: Any) -> Any:
        return ideal * (1 + percent / 100)

    second = axes.secondary_yaxis("right", functions=(over, back))
    most = over(axes.get_ylim()[1])
    second.set_yticks([tick for tick in MaxNLocator(8).tick_values(0, most) if 0 <= tick <= most])
    second.set_ylabel("over the ideal (%)")
    second.spines["right"].set_visible(False)
    second.tick_params(length=0)


def _draw_legend(figure: Figure, lines: list[Line2D], marked: bool, note: str) -> int:
    """Draw the legend and the note below the axes; returns how many rows they have."""
    from matplotlib.lines import Line2D

    if marked:
        triangle: dict[str, Any] = {"marker": (3, 0, 0), "markersize": 8.0, "color": "0.45", "linestyle": "none"}
        lines = [*lines, Line2D([], [], label="least memory with a plan, by colour", **triangle)]
    rows = -(-len(lines) // _COLUMNS)
    above = {"bbox_to_anchor": (0.5, 0.04)} if note else {}
    legend(figure, lines, -(-len(lines) // rows), handlelength=2.4, columnspacing=1.8, **above)
    figure.text(0.5, 0.018, note, fontsize=8.5, color="0.25", ha="center")
    return rows + bool(note)


def _subtitle(first: Frontier) -> str:
    device = first.device
    link = "no link"
    if device.d2h > 0 and device.h2d > 0:
        speeds = dict.fromkeys((format_bandwidth(device.d2h), format_bandwidth(device.h2d)))
        link = f"link {' and '.join(speeds)}"
    return f"{stages_or_ops(first.problem)}, {link}"


@picture
def plot_frontier(
    frontiers: Frontier | Planned | Sequence[Frontier | Planned], path: str | os.PathLike[str] | None = None
) -> Figure:
    """Draw makespan against memory: a curve for each planner, with the ideal, the lower bounds and the plain peak.

    Each point is a plan; the lines between them only guide the eye. Memories without a plan are left out, and a
    triangle above the axis marks the least memory of a planner. The second axis shows how far above the ideal a plan
    is. Needs matplotlib; does not touch pyplot's global state.

    Parameters
    ----------
    frontiers : Frontier, Planned or sequence of them
        For one problem and one link, such as those of several planners. The first one is drawn on top. Plans of one
        planner, as `TorchPlan.frontier` lists them, become one curve.

    Raises
    ------
    InvalidInputError
        Also for frontiers of different problems or links.

    Examples
    --------
    >>> import memsched as ms
    >>> chain = ms.Chain([1, 1, 1], [1, 1, 1], [4, 4, 4, 4], [4, 4, 4, 4])
    >>> curves = [ms.frontier(chain, beta=1, planner=name, points=3) for name in ("pofo", "rotor")]
    >>> figure = ms.plot_frontier(curves)
    >>> [axes.get_xlabel() for axes in figure.axes]
    ['memory (bytes)']
    """
    listed = _checked(frontiers)
    with drawing(path, unit_of(listed)) as figure:
        first = listed[0]
        peak = peak_memory(first.problem)
        makespans = [value for one in listed for value in one.makespan.tolist() if np.isfinite(value)]
        factor, unit = time_unit(max([first.ideal, *makespans]))
        ideal = factor * first.ideal
        scale, size = byte_unit(max(int(one.memory[-1]) for one in listed))
        low, high = _memory_range(listed)
        marks = _marks(listed, high - low)
        axes = figure.subplots()
        axes.set_xlim(low / scale, high / scale)
        least, most = _time_range(listed, 1 + max((level for *_, level in marks), default=-1))
        axes.set_ylim(factor * least, factor * most)
        lines, told = _draw_curves(axes, listed, factor, scale)
        lines.append(axes.axhline(ideal, label=f"ideal {format_seconds(first.ideal)}", **_IDEAL))
        for kind, points in lower_bounds(listed).items():
            memory, seconds = zip(*points, strict=True)
            style = _BOUNDS[kind] | _BOUND | {"marker": "_" if len(points) == 1 else None}
            label = f"lower bound {bound_words(listed, kind)}"
            lines += axes.plot(np.array(memory) / scale, factor * np.array(seconds), label=label, **style)
        if low <= peak <= high:
            lines.append(axes.axvline(peak / scale, label=f"peak of the plain run {format_bytes(peak)}", **_PEAK))
        _draw_marks(axes, marks, lines, scale)
        rows = _draw_legend(figure, lines, bool(marks), footnote(listed))
        axes.set_xlabel(f"memory ({size})")
        axes.set_ylabel(f"makespan ({unit})")
        clear(axes)
        if max(1.0, axes.get_ylim()[1]) < _MOST_OVER * ideal:
            _second_axis(axes, ideal)
        figure.subplots_adjust(left=0.085, right=0.925, top=0.86, bottom=0.125 + 0.047 * rows)
        heading(figure, f"makespan against memory, {name_of(first.problem)}", "; ".join([_subtitle(first), *told]))
    return figure

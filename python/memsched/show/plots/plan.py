"""Pictures of plans: the streams, and the memory below."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from memsched.errors import InvalidInputError, visible
from memsched.problems.bounds import alike
from memsched.problems.family import count_rounds
from memsched.problems.problem import name_of, short_stage_of
from memsched.result import Planned, Result, results_in
from memsched.show.arena import budget_of
from memsched.show.plots.figure import (
    SIZE,
    bar_names,
    byte_unit,
    clear,
    drawing,
    has_room,
    heading,
    legend,
    time_unit,
    write_in,
)
from memsched.show.plots.palette import BUDGET, MEMORY, RESIDENT, STREAMS
from memsched.show.trace import LANES, LINKS, Interval, intervals
from memsched.show.words import unit_of
from memsched.support import checks
from memsched.support.docstrings import picture
from memsched.support.formats import format_bytes, format_percent, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LANE = 0.44  # inches, of transfers
_COMPUTE = 2.2  # lanes: there is room for the names of stages
_MEMORY = 2.1  # inches
_BAR = 0.76  # of a lane
_GAP, _HAIR, _THIN = 0.5, 0.2, 3.0  # points: between bars, what a thin bar is widened by, and what is thin

Lanes = dict[int, tuple[float, float]]
"""Index in LANES -> middle and height, in lanes of transfers from the top."""


def _names(result: Result, bar: Interval) -> list[str]:
    """What a bar may be called, the longest first."""
    stage = short_stage_of(result.problem, bar.name) if bar.bytes is None else None
    return [visible(text) for text in bar_names(bar.name, stage)]


def _lanes(bars: list[Interval]) -> Lanes:
    """The lane of computation, and the others with bars."""
    found, top = {}, 0.0
    for lane in range(len(LANES)):
        if lane == 0 or any(bar.lane == lane for bar in bars):
            height = _COMPUTE if lane == 0 else 1.0
            found[lane] = (top + height / 2, height)
            top += height
    return found


def _drawn(bar: Interval, points: float) -> tuple[float, float]:
    """From when to when a bar is drawn: a gap separates it from its neighbours, but a very thin one is widened."""
    if points == 0:
        return bar.start, bar.end
    less = (_GAP / 2 if (bar.end - bar.start) * points > _THIN else -_HAIR / 2) / points
    return bar.start + less, bar.end - less


def _draw_lanes(axes: Axes, result: Result, bars: list[Interval], lanes: Lanes, factor: float, until: float) -> None:
    width = 72 * SIZE[0] * float(axes.get_position().width)
    points = width / until if until > 0 else 0.0
    for (kind, colour), lane in product(STREAMS.items(), lanes):
        chosen = [bar for bar in bars if (bar.kind, bar.lane) == (kind, lane)]
        if not chosen:
            continue
        middle, height = lanes[lane]
        spans = [_drawn(bar, points) for bar in chosen]
        axes.broken_barh(  # edges, or snapping to pixels, would make some bars higher than others
            [(factor * start, factor * (end - start)) for start, end in spans],
            (middle - height * _BAR / 2, height * _BAR),
            facecolors=colour,
            linewidth=0,
            snap=False,
        )
        for bar in chosen:
            box = ((bar.end - bar.start) * points, 72 * _LANE * height * _BAR)
            if has_room(box):
                write_in(axes, _names(result, bar), box, (factor * (bar.start + bar.end) / 2, middle), colour)
    axes.set_yticks([middle for middle, _ in lanes.values()], [LANES[lane] for lane in lanes])
    axes.set_ylim(sum(height for _, height in lanes.values()), 0)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", length=0, labelbottom=False)
    clear(axes, "x")
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)


def memory_curve(result: Result) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Times (seconds) and bytes to draw: for each instant its last value, after its peak if it has one.

    A dip that ends at the instant it began (a free that makes room for the next step) is left out.
    """
    times, counts = (np.asarray(column) for column in result.timeline.memory)
    kept: list[tuple[float, int]] = []
    first = np.flatnonzero(np.diff(times, prepend=-1.0))
    for start, end in zip(first, [*first[1:], len(times)], strict=True):
        most, last = int(counts[start:end].max()), int(counts[end - 1])
        if most > last and (not kept or most > kept[-1][1]):
            kept.append((float(times[start]), most))
        kept.append((float(times[start]), last))
    return np.array([time for time, _ in kept]), np.array([count for _, count in kept], dtype=np.int64)


def _is_far(result: Result) -> bool:
    """Whether the budget is so large that showing it would flatten the curve."""
    return budget_of(result) > 4 * result.peak_memory


def _draw_memory(axes: Axes, result: Result, factor: float, until: float) -> None:
    budget = budget_of(result)
    resident = result.graph.resident
    times, counts = memory_curve(result)
    most = result.peak_memory if _is_far(result) else max(budget, result.peak_memory)
    scale, unit = byte_unit(most)
    x = factor * np.append(times, until)
    y = np.append(counts, counts[-1]) / scale
    if resident:
        axes.fill_between([0, factor * until], 0, resident / scale, color=RESIDENT, alpha=0.45, lw=0)
        axes.hlines(resident / scale, 0, factor * until, color=RESIDENT, linewidth=1.1)
    axes.fill_between(x, resident / scale, y, step="post", color=MEMORY, alpha=0.18, lw=0)
    axes.step(x, y, where="post", color=MEMORY, linewidth=1.1)
    if not _is_far(result):
        axes.axhline(budget / scale, **BUDGET)
    axes.set_ylim(0, 1.08 * most / scale or 1.0)
    axes.set_ylabel(f"memory ({unit})")
    clear(axes)


def _seen(bars: list[Interval], until: float) -> set[str]:
    """The kinds of bars that can be seen; a loss, for instance, may take no time."""
    least = 0.5 * until / (72 * SIZE[0])  # half a point
    times: dict[str, float] = defaultdict(float)
    for bar in bars:
        times[bar.kind] += bar.end - bar.start
    return {kind for kind, seconds in times.items() if seconds >= least}


def _legend(figure: Figure, result: Result, kinds: set[str]) -> None:
    from matplotlib.colors import to_rgba
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Patch | Line2D] = [
        Patch(facecolor=colour, label=kind) for kind, colour in STREAMS.items() if kind in kinds
    ]
    if result.graph.resident:
        handles.append(Patch(facecolor=to_rgba(RESIDENT, 0.45), edgecolor=RESIDENT, label="resident"))
    handles.append(Line2D([], [], color=MEMORY, linewidth=1.1, label="memory"))
    budget = format_bytes(budget_of(result))
    where = " (off the scale)" if _is_far(result) else ""
    handles.append(Line2D([], [], label=f"budget {budget}{where}", **BUDGET))
    legend(figure, handles)


def _title(result: Result, lanes: Lanes) -> str:
    facts = [f"makespan {format_seconds(result.makespan)}"]
    if result.lower_bound > 0:
        same = alike(result.problem, result.schedule.chunk, result.bound_on)
        facts += [f"lower bound {format_seconds(result.lower_bound)}{same}", f"gap {format_percent(result.gap)}"]
    if result.optimal:
        facts.append("proven optimal")
    missing = [lane for lane in LINKS if lane not in lanes]
    if missing:
        facts.append("no transfers" + (f" from {LANES[missing[0]]}" if len(missing) == 1 else ""))
    rounds = count_rounds(result.schedule.rounds)
    if rounds > 1:
        facts.append(f"the first of {rounds} rounds is shown")
    if result.graph.persistent:
        facts.append("repeated without end: one period is shown")
    return ", ".join(facts)


@picture
def plot(result: Planned, path: str | os.PathLike[str] | None = None) -> Figure:
    """Draw a result: its streams and, on the same time axis, the memory in use.

    Bars that have room are named, in a chain also by their stages. Streams without steps are left out. Of a plan in
    rounds the first round is drawn, of one that is repeated without end one period. Needs matplotlib; does not touch
    pyplot's global state.

    Examples
    --------
    >>> import memsched as ms
    >>> chain = ms.Chain([1, 1, 1], [1, 1, 1], [4, 4, 4, 4], [0, 4, 4, 4])
    >>> figure = ms.plot(ms.greedy(chain, M=20, beta=4))
    >>> [axes.get_ylabel() for axes in figure.axes]
    ['', 'memory (bytes)']
    """
    if isinstance(result, Mapping | list | tuple):
        raise InvalidInputError("plot draws one Result; write_report takes several, and Comparison.plot compares them")
    result = checks.kind("result", results_in(result), Result)
    with drawing(path, unit_of(result)) as figure:
        bars = intervals(result)
        ends = [bar.end for bar in bars]
        until = (
            max(ends) if ends and count_rounds(result.schedule.rounds) > 1 else max([result.timeline.makespan, *ends])
        )
        factor, unit = time_unit(until)
        lanes = _lanes(bars)
        inches = _LANE * sum(height for _, height in lanes.values())
        whole = inches + _MEMORY + 1.84  # with the heading, the gap, the labels of the axis and the legend
        figure.set_size_inches(SIZE[0], whole)
        place: dict[str, Any] = {"left": 0.115, "right": 0.985, "top": 1 - 0.73 / whole, "bottom": 1.0 / whole}
        figure.subplots_adjust(**place, hspace=0.11 / ((inches + _MEMORY) / 2))
        streams, memory = figure.subplots(2, 1, sharex=True, height_ratios=[inches, _MEMORY])
        _draw_lanes(streams, result, bars, lanes, factor, until)
        _draw_memory(memory, result, factor, until)
        memory.set_xlim(0, 1.005 * factor * until or 1.0)
        memory.set_xlabel(f"time ({unit})")
        heading(figure, f"{result.planner} on {name_of(result.problem)}", _title(result, lanes))
        _legend(figure, result, _seen(bars, until))
    return figure

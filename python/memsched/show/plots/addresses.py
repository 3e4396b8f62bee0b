"""Pictures of arenas: which buffer is at which address, and when."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from memsched.arena.buffers import Buffer
from memsched.arena.placement import Placement
from memsched.arena.residency import placement_of
from memsched.errors import InvalidInputError, visible
from memsched.problems.family import count_rounds
from memsched.problems.problem import largest_graph, name_of
from memsched.result import Planned, Result, results_in
from memsched.show.arena import Columns, arena_of, budget_of, columns_of, lowest, origin, round_end
from memsched.show.plots.figure import (
    byte_unit,
    clear,
    drawing,
    has_room,
    heading,
    legend,
    readable,
    shortened,
    time_unit,
    write_in,
)
from memsched.show.plots.palette import BUDGET, LINES, RESIDENT, ROLES
from memsched.show.words import unit_of
from memsched.study.addresses import place
from memsched.support import checks
from memsched.support.docstrings import picture
from memsched.support.formats import counted, format_bytes, format_percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

Numbers = npt.NDArray[np.float64]

_LOAD: dict[str, Any] = {"color": "black", "linewidth": 1.0}
_HEIGHT: dict[str, Any] = {"color": "0.25", "linestyle": (0, (1, 1.5)), "linewidth": 1.2}
_MOST = 6  # arenas on a page
_LABELS = 100  # at most, in one arena
_LETTERS = (24, 14)  # of names that are shortened to fit, and that no other name is shortened to
_HEIGHTS = (4.4, 7.4)  # inches of a panel
_INCH = 0.02  # of its height, for each buffer
_OF_BUFFERS = "time, as in start and end of the buffers"
_FLAT = 1e-3  # the width of a picture without buffers, relative to their moment
_MOST_SITES = 6  # names that have a colour of their own
_OTHERS = "others"
_IN_LEGEND, _LEGEND_COLUMNS = 36, 3  # letters of a name, and columns where names are so long
_SHIFTS = (0.0, 0.15, -0.15, 0.3, -0.3, 0.45, -0.45)
_NEAREST = sorted(product(range(len(_SHIFTS)), repeat=2), key=sum)
_HAIR, _DOT = 3e-4, 1e-5  # shares of a panel: the height of a line, and the area of a dot
_FAR = 1.8  # a capacity above this many heights would flatten the picture


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arena:
    """One panel: a rectangle per buffer that is ever alive."""

    title: str
    placement: Placement
    left: Numbers  # in the unit of the panel
    right: Numbers
    low: Numbers  # bytes
    high: Numbers
    kinds: list[str]
    colours: dict[str, str]  # of kinds
    names: list[str | None]
    until: float
    axis: str
    capacity: int | None  # bytes


def _panel(found: Columns, factor: float = 1.0, **facts: Any) -> _Arena:
    low = np.array(found["low"], float)
    return _Arena(
        left=factor * np.array(found["start"], float),
        right=factor * np.array(found["end"], float),
        low=low,
        high=low + np.array(found["bytes"], float),
        kinds=found["kind"],
        names=found["name"],
        **facts,
    )


def sites_of(placements: list[Placement]) -> dict[str, str]:
    """The colour of each name that many buffers have, as those of a snapshot that one line of code allocated.

    The largest in bytes and time; empty unless they are most of what is drawn.
    """
    counts: Counter[str] = Counter()
    areas: dict[str, float] = defaultdict(float)
    for buffer in (buffer for placement in placements for buffer in placement.buffers):
        counts[buffer.name or ""] += 1
        areas[buffer.name or ""] += buffer.size * (buffer.end - buffer.start)
    largest = sorted(areas, key=lambda name: -areas[name])
    shared = [name for name in largest if name and counts[name] > len(placements)][:_MOST_SITES]
    if not shared or 2 * sum(areas[name] for name in shared) < sum(areas.values()):
        return {}
    return {_OTHERS: RESIDENT, **dict(zip(shared, LINES, strict=False))}


def kind_among(sites: dict[str, str], name: str | None) -> str:
    """What the buffers with a name are drawn as."""
    return name if name in sites else _OTHERS if sites else "buffer"


def axis_of(placement: Placement) -> str:
    """What the axis of time of a placement is called."""
    zero = origin(placement)
    return f"time since {zero}, as in start and end of the buffers" if zero else _OF_BUFFERS


def _of_placement(placement: Placement, sites: dict[str, str]) -> _Arena:
    zero = origin(placement)
    spans = [(buffer.start - zero, buffer.end - zero) for buffer in placement.buffers]
    return _panel(
        columns_of(placement, spans, lambda name: kind_among(sites, name)),
        colours=sites or ROLES,
        title=f"placed by {placement.method}",
        placement=placement,
        until=float(max((end for _, end in spans), default=0.0)),
        axis=axis_of(placement),
        capacity=None,
    )


def _in_time(result: Result) -> bool:
    """Whether a result is drawn in seconds: if its schedule has addresses, for only then are they free in time."""
    return result.schedule.memory == "contiguous" and round_end(result) > 0


def _of_result(result: Result, clock: tuple[float, str]) -> _Arena:
    """`clock`: units of time per second, and the name of the unit."""
    graph = largest_graph(result.problem, result.schedule)
    placement = result.placement or placement_of(result.schedule, graph) or place(result)
    in_time = _in_time(result)
    factor, unit = clock if in_time else (1.0, "")
    found, until = arena_of(result, placement, in_time=in_time)
    rounds = count_rounds(result.schedule.rounds)
    return _panel(
        found,
        factor,
        colours=ROLES,
        title=result.planner + (f", the first of {rounds} rounds" if rounds > 1 else ""),
        placement=placement,
        until=factor * until,
        axis=f"time ({unit})" if in_time else "ops, in the order of the plan",
        capacity=budget_of(result) - graph.resident,
    )


def _load_curve(arena: _Arena) -> tuple[Numbers, Numbers]:
    """Moments, and the bytes alive from each moment on."""
    moments = np.concatenate([arena.left, arena.right])
    changes = np.concatenate([arena.high - arena.low, arena.low - arena.high])
    at, index = np.unique(moments, return_inverse=True)
    return at, np.cumsum(np.bincount(index.ravel(), changes, len(at)))


def _runs_through(load: tuple[Numbers, Numbers], times: tuple[float, float], counts: tuple[float, float]) -> bool:
    """Whether the curve of the load goes through a rectangle of the picture."""
    first, last = np.searchsorted(load[0], times, side="right")
    seen = load[1][max(first - 1, 0) : last]
    return bool(len(seen)) and bool(seen.min() <= counts[1] and seen.max() >= counts[0])


def _moved_off(
    text: Text, axes: Axes, load: tuple[Numbers, Numbers], edges: tuple[tuple[float, float], ...], scale: int
) -> bool:
    """Move a text within the edges of its rectangle off the curve of the load; whether that can be."""
    (left, low), (right, high) = axes.transData.inverted().transform(text.get_window_extent())
    size, middle = (right - left, high - low), ((left + right) / 2, (low + high) / 2)
    ways = [  # shares of the room that is left beside the text
        [share * max(0.0, last - first - wide) for share in _SHIFTS]
        for (first, last), wide in zip(edges, size, strict=True)
    ]
    for right_by, up_by in (tuple(way[at] for way, at in zip(ways, both, strict=True)) for both in _NEAREST):
        span = (left + right_by, right + right_by)
        if not _runs_through(load, span, ((low + up_by) * scale, (high + up_by) * scale)):
            text.set_position((middle[0] + right_by, middle[1] + up_by))
            return True
    return False


def _label(axes: Axes, arena: _Arena, points: tuple[float, float], scale: int) -> int:
    """Names in the largest rectangles where they fit; `points` are the width of a unit and the height of a byte."""
    from matplotlib.patheffects import withStroke

    wide = (arena.right - arena.left) * points[0]
    tall = (arena.high - arena.low) * points[1]
    full = {name for name in arena.names if name is not None}
    load = _load_curve(arena)
    written, short = 0, [Counter(shortened(readable(name), most) for name in full) for most in _LETTERS]
    for k in np.argsort(-wide * tall, kind="stable"):
        box, name = (float(wide[k]), float(tall[k])), arena.names[k]
        if name is None or not has_room(box):
            continue
        at = ((arena.left[k] + arena.right[k]) / 2, (arena.low[k] + arena.high[k]) / 2 / scale)
        tried = [shortened(readable(name), most) for most in _LETTERS]
        names = [visible(readable(name)), *(one for one, counts in zip(tried, short, strict=True) if counts[one] == 1)]
        colour = arena.colours[arena.kinds[k]]
        text = write_in(axes, names, box, at, colour)
        if text is None:
            continue
        written += 1
        edges = (arena.left[k], arena.right[k]), (arena.low[k] / scale, arena.high[k] / scale)
        if not _moved_off(text, axes, load, edges, scale):
            text.set_path_effects([withStroke(linewidth=1.5, foreground=colour)])
        if written == _LABELS:
            break
    return written


def _draw_buffers(axes: Axes, arena: _Arena, scale: int, points: tuple[float, float]) -> None:
    from matplotlib.collections import PolyCollection

    low, high = arena.low / scale, arena.high / scale
    corners = np.stack([arena.left, low, arena.right, low, arena.right, high, arena.left, high], axis=1)
    # A white edge separates neighbours; around a very thin bar it would leave nothing to see.
    seen = ((arena.right - arena.left) * points[0] > 3) & ((arena.high - arena.low) * points[1] > 3)
    faces = [arena.colours[kind] for kind in arena.kinds]
    axes.add_collection(
        PolyCollection(
            list(corners.reshape(-1, 4, 2)),
            facecolors=faces,
            edgecolors=["white" if wide else face for wide, face in zip(seen, faces, strict=True)],
            linewidths=np.where(seen, 0.4, 0.15),
        ),
        autolim=False,
    )


def _span(arenas: list[_Arena], axis: str) -> tuple[float, float]:
    """From where to where all panels with this axis reach."""
    own = [arena for arena in arenas if arena.axis == axis]
    until = max(arena.until for arena in own)
    first = min(float(arena.left.min(initial=arena.until)) for arena in own) if axis == _OF_BUFFERS else 0.0
    return first, until if until - first > 1e-300 else first + max(1.0, _FLAT * abs(first))


def _draw(
    axes: Axes, arena: _Arena, scale: int, top: float, inches: tuple[float, float], span: tuple[float, float]
) -> tuple[str, str]:
    """One panel of the given size in inches, without its title, which is returned; `top` is in bytes."""
    found = arena.placement
    first, until = span
    axes.set_xlim(first, until)
    axes.set_ylim(0, top / scale)
    points = (72 * inches[0] / (until - first), 72 * inches[1] / top)
    _draw_buffers(axes, arena, scale, points)
    at, counts = _load_curve(arena)
    axes.step(at, counts / scale, where="post", **_LOAD)
    if arena.capacity != found.height:
        axes.axhline(found.height / scale, **_HEIGHT)
    if arena.capacity is not None and arena.capacity <= top:
        axes.axhline(arena.capacity / scale, **BUDGET)
    named = _label(axes, arena, points, scale)
    facts = f"height {format_bytes(found.height)}, {lowest(found)}; fragmentation {format_percent(found.fragmentation)}"
    count = sum(name is not None for name in arena.names)
    told = f", {named} of {counted(count, 'buffer')} named" if named < count else ""
    if _OTHERS in arena.colours:
        told = ", the names of most bytes in colour"
    axes.set_xlabel(arena.axis)
    clear(axes, None)
    if not arena.names:
        axes.text(0.5, 0.5, "no buffer is ever alive", transform=axes.transAxes, ha="center", color="0.25")
        axes.set(xticks=[], yticks=[])
    return arena.title + told, facts


def _seen(arena: _Arena, top: float) -> set[str]:
    """The kinds of buffers that can be seen: together larger than a point or so."""
    wide = (arena.right - arena.left) / (max(arena.until, arena.right.max(initial=0)) - arena.left.min(initial=0) or 1)
    areas: dict[str, float] = defaultdict(float)
    for kind, area in zip(arena.kinds, wide * np.maximum((arena.high - arena.low) / top, _HAIR), strict=True):
        areas[kind] += float(area)
    return {kind for kind, area in areas.items() if area >= _DOT}


def _legend(figure: Figure, arenas: list[_Arena], top: float) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    present = {kind for arena in arenas for kind in _seen(arena, top)}
    colours = {kind: colour for arena in arenas for kind, colour in arena.colours.items() if kind in present}
    kinds = sorted(colours, key=lambda kind: kind == _OTHERS)  # which come last
    handles: list[Any] = [Patch(facecolor=colours[kind], label=shortened(kind, _IN_LEGEND)) for kind in kinds]
    handles.append(Line2D([], [], label="load", **_LOAD))
    if any(arena.capacity != arena.placement.height for arena in arenas):
        handles.append(Line2D([], [], label="height", **_HEIGHT))
    known = sorted({arena.capacity for arena in arenas if arena.capacity is not None})
    if known:
        said = format_bytes(known[0]) if len(known) == 1 else "of each"
        off = " (off the scale)" if known[0] > top else ""
        handles.append(Line2D([], [], label=f"capacity {said}{off}", **BUDGET))
    legend(figure, handles, _LEGEND_COLUMNS if _OTHERS in colours else None)


@picture
def plot_addresses(
    arenas: Planned | Placement | Sequence[Planned | Placement], path: str | os.PathLike[str] | None = None
) -> Figure:
    """Draw arenas: each buffer is a rectangle at its address, as wide as its lifetime and as high as its size.

    Buffers that have room are named; where many have the same names, as those that a line of code allocates in a memory
    snapshot, the names with most bytes have colours. Several arenas are drawn side by side on the same scales. The line
    is the load, the bytes that are alive; it touches the height if nothing is lost to gaps. For a result, the capacity
    is the budget without the resident bytes; of a plan in rounds, the first round is drawn; and if the plan has no
    addresses, `place` makes some. Needs matplotlib; does not touch pyplot's global state.

    Parameters
    ----------
    arenas : Planned, Placement or sequence of them
        Up to six. A result is drawn in seconds if its schedule has addresses and its ops take time, else by op.

    References
    ----------
    Steiner et al., OLLA, 2022, Figure 4.

    Examples
    --------
    >>> import memsched as ms
    >>> graph = ms.profiles.load_graph("vgg16-224-b32")
    >>> figure = ms.plot_addresses(ms.olla(graph, M=ms.peak_memory(graph)))
    >>> figure.axes[0].get_ylabel()
    'address (GiB)'
    """
    if isinstance(arenas, Buffer) or (isinstance(arenas, Sequence) and any(isinstance(one, Buffer) for one in arenas)):
        raise InvalidInputError(
            "arenas has a Buffer, which has no address yet; place(buffers) makes a Placement of them"
        )
    given: list[Result | Placement] = checks.one_or_more("arenas", results_in(arenas), (Result, Placement), _MOST)
    with drawing(path, unit_of(given)) as figure:
        clock = time_unit(
            max((round_end(one) for one in given if isinstance(one, Result) and _in_time(one)), default=0.0)
        )
        sites = sites_of([one for one in given if isinstance(one, Placement)])
        panels = [_of_result(one, clock) if isinstance(one, Result) else _of_placement(one, sites) for one in given]
        height = max(panel.placement.height for panel in panels)
        near = [panel.capacity for panel in panels if panel.capacity is not None and panel.capacity <= _FAR * height]
        top = 1.04 * max(height, *near, 1)
        told = _draw_grid(figure, panels, top)
        heading(figure, _heading(given), told)
        _legend(figure, panels, top)
    return figure


def _draw_grid(figure: Figure, panels: list[_Arena], top: float) -> str:
    """Draw the panels side by side, two per row; the title of a single one is returned, for the head of the page."""
    columns = min(len(panels), 2)
    rows = -(-len(panels) // columns)
    low, high = _HEIGHTS
    most = max(len(panel.names) for panel in panels)
    more = 0.5 if any(_OTHERS in panel.colours for panel in panels) else 0.0  # inches, of the legend's other rows
    figure.set_size_inches(10.0, 1.0 + more + min(max(low, _INCH * most), high) * rows)
    inch = 1 / figure.get_figheight()
    edges = {
        "left": 0.08,
        "right": 0.985,
        "top": 1 - (0.95 if len(panels) > 1 else 0.75) * inch,
        "bottom": (0.9 + more) * inch,
    }
    figure.subplots_adjust(**edges, hspace=0.33, wspace=0.06)
    grid = figure.subplots(rows, columns, sharey=True, squeeze=False)
    box = grid[0, 0].get_position()
    inches = (figure.get_figwidth() * box.width, figure.get_figheight() * box.height)
    scale, unit = byte_unit(int(top))
    titles = [
        _draw(axes, panel, scale, top, inches, _span(panels, panel.axis))
        for axes, panel in zip(grid.flat, panels, strict=False)
    ]
    if len(panels) > 1:
        for axes, lines in zip(grid.flat, titles, strict=False):
            axes.set_title("\n".join(lines), loc="left", fontsize=9.5, color="0.25")
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    for axes in grid[:, 0]:
        axes.set_ylabel(f"address ({unit})")
    return "; ".join(titles[0]) if len(panels) == 1 else ""


def _heading(given: list[Result | Placement]) -> str:
    names = {name_of(one.problem) for one in given if isinstance(one, Result)}
    counts = {len(one.buffers) for one in given if isinstance(one, Placement)}
    of = names or {counted(count, "buffer") for count in counts}
    return f"addresses of {next(iter(of))}" if len(of) == 1 else "addresses"

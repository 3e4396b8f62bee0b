"""Pictures of the class of each feature map, along the network or by kind of op."""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from memsched._core import Chain
from memsched.errors import InvalidInputError
from memsched.problems.family import count_rounds
from memsched.problems.problem import name_of
from memsched.result import Planned, Result, results_in
from memsched.show.plots.figure import byte_unit, clear, drawing, heading, readable, shortened, text_size
from memsched.show.plots.palette import CLASSES as COLOURS
from memsched.show.words import unit_of
from memsched.study.feature_maps import CLASSES, classes_by_kind, feature_map_classes
from memsched.support import checks
from memsched.support.docstrings import picture
from memsched.support.formats import format_bytes, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST = 6  # rows on a page
_KINDS = 12  # bars in a row
_ROW = 1.25  # inches of a row with a bar for each map
_NAME_POINTS = 6.5
_LONGEST = 32  # letters of a name below a bar
_LEFT, _RIGHT, _WIDTH = 0.08, 0.985, 10.0  # shares of the width, and the width in inches

By = Literal["map", "kind"]


def _by_class(result: Result) -> dict[str, dict[int, int]]:
    """Class -> number of the map -> bytes."""
    sizes = {tensor["name"]: tensor["size"] for tensor in result.graph.tensors}
    found: dict[str, dict[int, int]] = {kind: {} for kind in CLASSES}
    for at, (name, kind) in enumerate(feature_map_classes(result).items()):
        found[kind][at] = sizes[name]
    return found


def _draw_maps(axes: Axes, result: Result, scale: int) -> None:
    classes = _by_class(result)
    for kind, maps in classes.items():
        heights = [size / scale for size in maps.values()]
        axes.bar(list(maps), heights, width=1.0, color=COLOURS[kind], edgecolor="white", linewidth=0.3)
    axes.set_xlim(-0.5, max(sum(map(len, classes.values())), 1) - 0.5)


def _named(result: Result) -> tuple[range, list[str]]:
    """The numbers of the feature maps whose names have room below their bars, and these names."""
    names = list(feature_map_classes(result))
    room = 72 * _WIDTH * (_RIGHT - _LEFT) / max(len(names), 1)
    chosen = range(0, len(names), math.ceil(1.35 * _NAME_POINTS / room))
    return chosen, [shortened(readable(names[at]), _LONGEST) for at in chosen]


def _ordinal(step: int) -> str:
    tail = "th" if step % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(step % 10, "th")
    return f"{step}{tail}"


def _shortened(kinds: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    seen = sum(sum(row.values()) for row in kinds.values()) / 100
    named = dict([one for one in kinds.items() if sum(one[1].values()) >= seen][: _KINDS - 1])
    others = [row for kind, row in kinds.items() if kind not in named]
    if len(others) < 2:
        return kinds
    return named | {f"{len(others)} others": {chosen: sum(row[chosen] for row in others) for chosen in CLASSES}}


def _draw_kinds(axes: Axes, kinds: dict[str, dict[str, int]], scale: int) -> None:
    bottom = [0.0] * len(kinds)
    for chosen in CLASSES:
        heights = [row[chosen] / scale for row in kinds.values()]
        axes.bar(range(len(kinds)), heights, bottom=bottom, width=0.7, color=COLOURS[chosen])
        bottom = [below + height for below, height in zip(bottom, heights, strict=True)]
    axes.set_xticks(range(len(kinds)), ["\n".join(textwrap.wrap(kind.replace("_", " "), 14)) for kind in kinds])
    axes.tick_params(axis="x", labelsize=8, length=0)
    axes.set_xlim(-0.6, max(len(kinds), 1) - 0.4)


def _title(result: Result, drawn: str) -> str:
    classes = _by_class(result).items()
    counts = [f"{len(maps)} {kind} ({format_bytes(sum(maps.values()))})" for kind, maps in classes]
    rounds = count_rounds(result.schedule.rounds)
    split = f" in {rounds} rounds" if rounds > 1 else ""
    return f"{drawn}: {format_seconds(result.makespan)}{split}, {', '.join(counts)}"


def _legend(figure: Figure) -> None:
    from matplotlib.patches import Patch

    handles: list[Any] = [Patch(facecolor=COLOURS[kind], label=kind) for kind in CLASSES]
    figure.legend(handles=handles, loc="lower right", ncols=3, frameon=False, fontsize=9.5, handlelength=1.5)


@picture
def plot_classes(
    results: Planned | Sequence[Planned], path: str | os.PathLike[str] | None = None, *, by: By = "map"
) -> Figure:
    """Draw the feature maps, coloured by their class in a plan: along the network, or added up by kind of op.

    Several results are drawn below each other, with one axis if they have the same feature maps. Needs matplotlib; does
    not touch pyplot's global state.

    Parameters
    ----------
    results : Planned or sequence of Planned
        Up to six.
    by : "map" or "kind"
        "map": a bar for each feature map, as high as it is large, in the order in which the forward writes them. If
        not all names have room, every second, third, .. is shown.
        "kind": a bar for each kind of op, as high as all that its ops write, the highest first; kinds with less than
        1 % of the bytes, and from the twelfth on, are added up. Stages of a chain have no kinds.

    Raises
    ------
    InvalidInputError
        Also for a chain by "kind".

    References
    ----------
    Ito et al., PoocH, 2019, Table 3.

    Examples
    --------
    >>> import memsched as ms
    >>> graph = ms.profiles.analytic("resnet50", 512).graph
    >>> device = ms.Device(16 * 10**9, 12e9, duplex=True)
    >>> figure = ms.plot_classes([ms.superneurons(graph, device=device), ms.pooch(graph, device=device)])
    >>> len(figure.axes)
    2
    """
    rows = checks.one_or_more("results", results_in(results), (Result,), _MOST)
    checks.choice("by", by, get_args(By))
    chains = [row for row in rows if isinstance(row.problem, Chain)]
    if by == "kind" and chains:
        raise InvalidInputError(
            f"by is 'kind', but the stages of the chain '{name_of(chains[0].problem)}' have no kinds; use by='map'"
        )
    with drawing(path, unit_of(rows)) as figure:
        (_draw_by_kind if by == "kind" else _draw_by_map)(figure, rows)
        names = {name_of(row.problem) for row in rows}
        heading(figure, f"feature maps of {names.pop()}" if len(names) == 1 else "feature maps")
        _legend(figure)
    return figure


def _draw_by_kind(figure: Figure, rows: list[Result]) -> None:
    kinds = [_shortened(classes_by_kind(row)) for row in rows]
    most = max((sum(row.values()) for found in kinds for row in found.values()), default=0)
    grid = _grid(figure, rows, most, 1.3, 0.9, between=0.75)
    for axes, found in zip(grid, kinds, strict=True):
        _draw_kinds(axes, found, byte_unit(most)[0])
    grid[-1].set_xlabel("kinds of op that write feature maps", loc="left")


def _draw_by_map(figure: Figure, rows: list[Result]) -> None:
    most = max((tensor["size"] for row in rows for tensor in row.graph.tensors), default=0)
    one_axis = len({tuple(feature_map_classes(row)) for row in rows}) == 1  # all rows have the same maps
    named = [_named(row) for row in rows]
    written = [name for _, names in named for name in names]
    below = max((text_size(figure, name, _NAME_POINTS, math.inf)[0] for name in written), default=0) / 72
    between = 0.3 if one_axis else (0.85 + below) / _ROW
    grid = _grid(figure, rows, most, _ROW, 0.6 + below, between=between, sharex=one_axis)
    for axes, row, (at, names) in zip(grid, rows, named, strict=True):
        _draw_maps(axes, row, byte_unit(most)[0])
        labelled = axes is grid[-1] or not one_axis
        axes.tick_params(axis="x", length=2, labelbottom=labelled)
        if labelled:
            axes.set_xticks(at, names, rotation=90, fontsize=_NAME_POINTS)
            told = f"; every {_ordinal(at.step)} is named" if at.step > 1 else ""
            axes.set_xlabel(f"feature maps, in the order in which the forward writes them{told}", loc="left")


def _grid(
    figure: Figure, rows: list[Result], most: int, inches: float, below: float, *, between: float, sharex: bool = False
) -> list[Axes]:
    """Axes below each other, each with room for `inches` and the same scale of bytes up to `most`."""
    whole = 0.8 + below + inches * (len(rows) + between * (len(rows) - 1))
    figure.set_size_inches(_WIDTH, whole)
    place: dict[str, Any] = {"left": _LEFT, "right": _RIGHT, "top": 1 - 0.8 / whole, "bottom": below / whole}
    figure.subplots_adjust(**place, hspace=between)
    grid: list[Axes] = list(figure.subplots(len(rows), 1, squeeze=False, sharey=True, sharex=sharex)[:, 0])
    scale, unit = byte_unit(most)
    several = len({name_of(row.problem) for row in rows}) > 1
    for axes, row in zip(grid, rows, strict=True):
        clear(axes, "y")
        axes.set_ylim(0, 1.08 * most / scale or 1.0)
        drawn = f"{row.planner} on {name_of(row.problem)}" if several else row.planner
        axes.set_title(_title(row, drawn), loc="left", fontsize=10, color="0.25")
        axes.set_ylabel(unit)
    return grid

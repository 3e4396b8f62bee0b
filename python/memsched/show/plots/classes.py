"""Pictures of the class of each feature map, drawn along the network."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from memsched.problems.family import count_rounds
from memsched.problems.problem import name_of
from memsched.result import Result
from memsched.show.plots.figure import byte_unit, clear, heading, new_figure, save
from memsched.study.feature_maps import CLASSES, feature_map_classes
from memsched.support import checks
from memsched.support.docstrings import picture
from memsched.support.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, as in `plot`: dark: keep, green: swap, yellow: recompute.
_COLOURS = {"keep": "#0072b2", "swap": "#009e73", "recompute": "#f0e442"}
_MOST = 6  # rows on a page


def _draw_row(axes: Axes, result: Result, scale: int, unit: str) -> None:
    classes = feature_map_classes(result)
    sizes = {tensor["name"]: tensor["size"] for tensor in result.graph.tensors}
    for kind in CLASSES:
        at = [position for position, found in enumerate(classes.values()) if found == kind]
        heights = [sizes[name] / scale for name, found in classes.items() if found == kind]
        axes.bar(at, heights, width=1.0, color=_COLOURS[kind], edgecolor="white", linewidth=0.3)
    counts = [
        f"{len(chosen)} {kind} ({format_bytes(sum(chosen))})"
        for kind in CLASSES
        for chosen in [[sizes[name] for name, found in classes.items() if found == kind]]
    ]
    rounds = count_rounds(result.schedule.rounds)
    split = f" in {rounds} rounds" if rounds > 1 else ""
    title = f"{result.planner}: {format_seconds(result.makespan)}{split}, {', '.join(counts)}"
    axes.set_title(title, loc="left", fontsize=10, color="0.25", parse_math=False)
    axes.set_ylabel(unit)
    axes.set_xlim(-0.5, max(len(classes), 1) - 0.5)
    clear(axes, "y")


def _legend(figure: Figure) -> None:
    from matplotlib.patches import Patch

    handles: list[Any] = [Patch(facecolor=_COLOURS[kind], label=kind) for kind in CLASSES]
    figure.legend(handles=handles, loc="lower right", ncols=3, frameon=False, fontsize=9.5, handlelength=1.5)


@picture
def plot_classes(results: Result | Sequence[Result], path: str | os.PathLike[str] | None = None) -> Figure:
    """Draw the feature maps along the network, as high as they are large, coloured by their class in a plan.

    Several results for one problem are drawn below each other. Needs matplotlib; does not touch pyplot's global state.

    Parameters
    ----------
    results : Result or sequence of Result
        Up to six.

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
    rows = checks.one_or_more("results", results, (Result,), _MOST)
    figure = new_figure(path)
    figure.set_size_inches(10.0, 1.3 + 1.7 * len(rows))
    largest = max((tensor["size"] for row in rows for tensor in row.graph.tensors), default=0)
    scale, unit = byte_unit(largest)
    inch = 1 / figure.get_size_inches()[1]
    figure.subplots_adjust(left=0.08, right=0.985, top=1 - 0.8 * inch, bottom=0.6 * inch, hspace=0.45)
    grid = figure.subplots(len(rows), 1, squeeze=False)
    for axes, row in zip(grid[:, 0], rows, strict=True):
        _draw_row(axes, row, scale, unit)
    grid[-1, 0].set_xlabel("feature maps, in the order in which the forward writes them", loc="left")
    heading(figure, f"feature maps of {name_of(rows[0].problem)}")
    _legend(figure)
    save(figure, path)
    return figure

"""The picture of ways to run a training step: what memory each needs, beside that of the device."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from memsched.show.plots.figure import byte_unit, clear, heading, new_figure, save, shortened
from memsched.show.plots.palette import BUDGET, CLASSES, IDEAL
from memsched.study.fit import Fit, Way
from memsched.support.units import exact_bytes, format_seconds, unit_written

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BAR, _FRAME = 0.42, 1.5  # inches: the height of a bar with its gap, and of what stands around the bars


def plot_fit(found: Fit, path: str | os.PathLike[str] | None = None) -> Figure:
    """Draw a bar for each way to run a training step, and the memory of the device as a line.

    Parameters
    ----------
    found : Fit
    path : path, optional
        Where to save the picture: .png, .svg or .pdf.

    Raises
    ------
    InvalidInputError
        The path ends otherwise.
    MemschedError
        matplotlib is not installed.
    """
    bars, memory = found.ways, found.memory
    figure = new_figure(path)
    height = _FRAME + _BAR * len(bars)
    figure.set_size_inches(10.0, height)
    axes = figure.add_axes((0.19, 0.62 / height, 0.62, 1 - _FRAME / height))
    factor, unit = byte_unit(max(memory, *(one.peak_memory for one in bars)))
    places = range(len(bars), 0, -1)
    colours = [CLASSES["keep"] if one.fits else IDEAL for one in bars]
    axes.barh(places, [one.peak_memory / factor for one in bars], height=0.62, color=colours)
    axes.axvline(memory / factor, **BUDGET)
    right = 1.02 * max(memory, *(one.peak_memory for one in bars)) / factor
    axes.set_xlim(0, right)
    axes.set_ylim(0.4, len(bars) + 0.6)
    axes.set_yticks(list(places), [one.name for one in bars])
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"peak memory of the process ({unit})")
    for place, one in zip(places, bars, strict=True):
        axes.annotate(_said(one), (right, place), (6, 0), textcoords="offset points", va="center", fontsize=9)
    clear(axes, "x")
    told = f"dashed: the device has {exact_bytes(memory, unit_written(memory))}; grey bars do not fit"
    heading(figure, f"What a training step of {shortened(found.name, 60)} needs", told)
    save(figure, path)
    return figure


def _said(one: Way) -> str:
    time = "does not fit" if one.makespan is None else format_seconds(one.makespan)
    return time if one.largest_batch is None else f"{time}, batch up to {one.largest_batch}"
